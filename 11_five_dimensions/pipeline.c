/* pp: 09's pipeline, unchanged. The header of this program comes first, and has the same guard as that of 09. */
#include "combined.h"
#include "../09_combined/pipeline.c"
