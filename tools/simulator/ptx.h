/* A kernel as the simulated GPU runs it. parser.cc makes it from the PTX in the program. instructions.cc
 * and warp_instructions.cc hold the instructions, launcher.cc runs them. All of it follows NVIDIA's PTX ISA manual. */
#ifndef PTX_H
#define PTX_H

#include <cuda_runtime_api.h>
#include <map>
#include <stdint.h>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "memory.h"

enum { LANES = 32 };

struct Warp;
struct Instruction;
typedef void Handler(Warp &warp, const Instruction &i, uint32_t lanes);         /* lanes: a mask of those that run it */

enum Space : uint8_t { GENERIC, GLOBAL, SHARED, PARAMETERS };
enum Control : uint8_t { NEXT, BRANCH, RETURN, BARRIER };       /* what the launcher does after it */

/* What the tables say of an instruction, by its name with all types: the widths of the registers it writes and reads,
 * in the order of its operands, in bytes; 1 is a predicate. */
struct Operation {
    Handler *run;                       /* NULL if the launcher runs it */
    uint8_t to[4], from[10];
    Control control = NEXT;
};
typedef std::unordered_map<std::string_view, Operation> Table;
extern const Table arithmetic, of_warps;
enum { ADDRESS = 100, LABEL };          /* operands that are no register */

/* An instruction, decoded once. Registers are places in the warp's file, where a register's 32 lanes follow one
 * another. A predicate is a mask of 32 bits. */
struct Instruction {
    Handler *run;
    Control control;
    uint32_t to[4], from[10];
    uint32_t guard;                     /* the predicate of @p; 0: none */
    bool guard_not, extends_sign;
    Space space;
    uint8_t kind;                       /* counted as */
    uint8_t bytes, width, count;        /* of memory: an element's, the register's; elements per lane */
    uint8_t address_width;
    int32_t target;                     /* a branch's */
    int64_t offset;                     /* in an address [register + offset] */
    uint32_t file, line;                /* in the source */
    std::string_view text;
};

/* %tid.x and so on; 0: not used */
enum Special { TID, NTID, CTAID, NCTAID, SPECIALS };

struct Parameter {
    std::string_view name;
    int offset, bytes;
};

struct Constant {
    uint32_t at;                        /* a register that holds it in all lanes */
    int width;
    uint64_t value;
};

struct Kernel {
    std::string name, text;             /* text: from .entry on */
    std::vector<Parameter> parameters;
    int parameter_bytes = 0, most_threads = 1024, static_shared = 0;
    size_t most_dynamic_shared;         /* 48 KB less the static, unless cudaFuncSetAttribute sets it */
    std::vector<Instruction> code;
    std::vector<Constant> constants;
    uint32_t special[SPECIALS][3] = {};
    uint32_t file_bytes = 64;           /* of a warp's registers; place 0 is none */
    const std::map<int, std::string> *files;

    const char *source(uint32_t file) const
    {
        return files->count(file) ? files->at(file).c_str() : "?";
    }
};

/* The PTX of a source file, as the fat binary holds it. */
struct Module {
    std::string text;
    std::map<std::string, Kernel *> kernels;
    std::map<int, std::string> files;   /* of sources */
    std::vector<std::string> shared;    /* declarations of shared memory outside of kernels */
};

std::string plain_name(const Kernel &k);                        /* as in C++, without parameters */
Kernel *find_kernel(Module *module, const std::string &name);   /* parses it on first use */

/* Instructions that decode themselves from a name with many forms. */
Handler load, store, pack, unpack, copy_async;

/* ---- running ---- */

struct Copy {                           /* of cp.async, in flight */
    uint64_t to, from;
    uint8_t bytes, there, lane;         /* there: bytes to copy, the rest is zeros */
    uint32_t group;
};

struct Block;
struct Warp {
    uint8_t *registers;
    Block *block;
    int number;
    uint32_t segment, alive, waiting;   /* waiting: at the barrier `at` */
    int at;
    std::map<int, uint32_t> groups;     /* lanes that run together, by their place in the code */
    std::vector<Copy> copies;
    uint32_t groups_of_copies[LANES];

    template <typename T> T *lane(uint32_t place) const
    {
        return (T *)(registers + place);
    }
    uint32_t &predicate(uint32_t place) const
    {
        return *(uint32_t *)(registers + place);
    }
};

struct Block {
    Kernel *kernel;
    uint32_t number;
    uint16_t barriers;
    const uint8_t *parameters;
    Memory shared;
    std::vector<Warp> warps;
};

/* Where kernels see shared memory in the addresses of all memories. */
static const uint64_t SHARED_WINDOW = 1ull << 40;

enum Order { IN_ORDER, REVERSED, SHUFFLED };    /* of streams, blocks and warps: SIMULATED_ORDER */
Order simulated_order(void);
unsigned chance(unsigned below);        /* a random number, the same in every run */

/* Runs a launch. parameters: the kernel's, one after the other. */
void run_grid(Kernel *kernel, dim3 grid, dim3 threads, size_t dynamic_shared, const uint8_t *parameters);

/* ---- counts of what kernels do, if SIMULATED_COUNTS is set ---- */

extern const bool counting;
enum Kind : uint8_t { OTHER, FLOAT, EXPONENT, MATRIX, LOAD_MATRICES, COPY };
Kind kind_of(const std::string &name);  /* of an instruction */
void count_launch(const Kernel &k);
void count_call(const char *name);      /* of the host */
void count_instruction(const Instruction &i);
/* An access of `bytes` bytes per lane, at the addresses in a register. */
void count_access(const uint64_t addresses[LANES], uint32_t lanes, unsigned bytes, bool shared);

#endif
