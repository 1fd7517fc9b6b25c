/* Counts what kernels do, if SIMULATED_COUNTS is set, and prints at the end of the program what bounds their speed. */
#ifndef COUNTS_H
#define COUNTS_H

#include "ptx.h"

extern const bool counting;

enum Kind : uint8_t { OTHER, FLOAT, EXPONENT, MATRIX, LOAD_MATRICES, COPY };
Kind kind_of(const std::string &name);  /* of an instruction */

void count_launch(const Kernel &k);
void count_instruction(const Instruction &i);
/* An access of `bytes` bytes per lane, at the addresses in a register. */
void count_access(const uint64_t addresses[LANES], uint32_t lanes, unsigned bytes, bool shared);

#endif
