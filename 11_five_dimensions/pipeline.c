/* pp: 09's pipeline, unchanged but for the BlockActs of this program. */
#include "combined.h"
#include "../09_combined/pipeline.c"
