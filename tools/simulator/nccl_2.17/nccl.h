/* What comm/nccl.c uses of NCCL 2.17, declared as there: test_check_machine compiles nccl.c with it. */
#include <stddef.h>

#define NCCL_MAJOR 2
#define NCCL_MINOR 17
#define NCCL_PATCH 1
#define NCCL_VERSION(X, Y, Z) ((X) * 10000 + (Y) * 100 + (Z))
#define NCCL_CONFIG_INITIALIZER {0}

typedef enum { ncclSuccess } ncclResult_t;
typedef enum { ncclSum, ncclMax } ncclRedOp_t;
typedef enum {
    ncclUint8,
    ncclInt32,
    ncclFloat16,
    ncclFloat32,
    ncclFloat64,
#if defined(__CUDA_BF16_TYPES_EXIST__)
    ncclBfloat16,
#endif
} ncclDataType_t;
typedef struct { int blocking, cgaClusterSize, minCTAs, maxCTAs; } ncclConfig_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef struct ncclComm *ncclComm_t;

const char *ncclGetErrorString(ncclResult_t), *ncclGetLastError(ncclComm_t);
ncclResult_t ncclGetVersion(int *), ncclGetUniqueId(ncclUniqueId *), ncclGroupStart(void), ncclGroupEnd(void),
    ncclCommInitRankConfig(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *), ncclCommDestroy(ncclComm_t),
    ncclCommGetAsyncError(ncclComm_t, ncclResult_t *);

#define REST ncclComm_t, struct CUstream_st *
ncclResult_t ncclAllReduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, REST),
    ncclReduceScatter(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, REST),
    ncclReduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, REST),
    ncclAllGather(const void *, void *, size_t, ncclDataType_t, REST),
    ncclBroadcast(const void *, void *, size_t, ncclDataType_t, int, REST),
    ncclSend(const void *, size_t, ncclDataType_t, int, REST), ncclRecv(void *, size_t, ncclDataType_t, int, REST);
