/* FlashAttention for heads of 49 to 64. */
#include "flash_backward.cuh"
#include "flash_forward.cuh"

template struct Flash<64>;
