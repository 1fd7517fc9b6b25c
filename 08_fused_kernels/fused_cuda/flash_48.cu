/* FlashAttention for heads of 33 to 48. */
#include "flash_backward.cuh"
#include "flash_forward.cuh"

template struct Flash<48>;
