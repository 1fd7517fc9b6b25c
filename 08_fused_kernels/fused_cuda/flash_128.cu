/* FlashAttention for heads of 97 to 128. */
#include "flash_backward.cuh"
#include "flash_forward.cuh"

template struct Flash<128>;
