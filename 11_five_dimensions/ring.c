/* cp: 09's ring attention, unchanged but for the BlockActs of this program. */
#include "combined.h"
#include "../09_combined/ring.c"
