/* FlashAttention for heads of 65 to 80. */
#include "flash_backward.cuh"
#include "flash_forward.cuh"

template struct Flash<80>;
