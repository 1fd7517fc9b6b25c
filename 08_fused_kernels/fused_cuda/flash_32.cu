/* FlashAttention for heads of 1 to 32. */
#include "flash_backward.cuh"
#include "flash_forward.cuh"

template struct Flash<32>;
