/* FlashAttention for heads of 81 to 96. */
#include "flash_backward.cuh"
#include "flash_forward.cuh"

template struct Flash<96>;
