/* cp: 09's ring attention, unchanged. The header of this program comes first, and has the same guard as that of 09. */
#include "combined.h"
#include "../09_combined/ring.c"
