// cuBLAS, cuBLASLt, cuSOLVER, cuSPARSE, cuSPARSELt, cuFFT and cuRAND: handles, descriptors, and the sizes of workspaces.
// What computes something is a stub that is counted as a launch (stubs.txt).
//
// How large a workspace these libraries want is known to them alone. 0 is answered, which takes the least memory; the
// workspaces of cuBLAS and cuBLASLt that torch itself allocates do not depend on it.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arguments.h"
#include "card.h"
#include "launches.h"

using namespace emulated;

// --- cuBLAS --------------------------------------------------------------------------------------------------------

namespace {

struct BlasHandle {
  void* stream = nullptr;
  int pointer_mode = 0, math_mode = 0, atomics_mode = 0, multiprocessors = 0;
};

BlasHandle* blas(void* handle) { return static_cast<BlasHandle*>(handle); }

}  // namespace

PUBLIC int cublasCreate_v2(void** handle) {
  *handle = new BlasHandle;
  return 0;
}
PUBLIC int cublasDestroy_v2(void* handle) {
  delete blas(handle);
  return 0;
}
PUBLIC int cublasGetVersion_v2(void*, int* version) {
  *version = card().cuda_version / 1000 * 10000;
  return 0;
}
PUBLIC int cublasSetStream_v2(void* handle, void* stream) {
  blas(handle)->stream = stream;
  return 0;
}
PUBLIC int cublasGetStream_v2(void* handle, void** stream) {
  *stream = blas(handle)->stream;
  return 0;
}
PUBLIC int cublasSetPointerMode_v2(void* handle, int mode) {
  blas(handle)->pointer_mode = mode;
  return 0;
}
PUBLIC int cublasGetPointerMode_v2(void* handle, int* mode) {
  *mode = blas(handle)->pointer_mode;
  return 0;
}
PUBLIC int cublasSetMathMode(void* handle, int mode) {
  blas(handle)->math_mode = mode;
  return 0;
}
PUBLIC int cublasGetMathMode(void* handle, int* mode) {
  *mode = blas(handle)->math_mode;
  return 0;
}
PUBLIC int cublasSetAtomicsMode(void* handle, int mode) {
  blas(handle)->atomics_mode = mode;
  return 0;
}
PUBLIC int cublasGetAtomicsMode(void* handle, int* mode) {
  *mode = blas(handle)->atomics_mode;
  return 0;
}
PUBLIC int cublasSetSmCountTarget(void* handle, int count) {
  blas(handle)->multiprocessors = count;
  return 0;
}
PUBLIC int cublasGetSmCountTarget(void* handle, int* count) {
  *count = blas(handle)->multiprocessors;
  return 0;
}
PUBLIC const char* cublasGetStatusName(int status) { return status ? "CUBLAS_STATUS_INTERNAL_ERROR" : "CUBLAS_STATUS_SUCCESS"; }
PUBLIC const char* cublasGetStatusString(int status) { return cublasGetStatusName(status); }

// --- cuBLASLt ------------------------------------------------------------------------------------------------------

namespace {

struct LtResult {  // cublasLtMatmulHeuristicResult_t
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

}  // namespace

MAKES_HANDLE(cublasLtCreate)
MAKES_HANDLE(cublasLtMatmulDescCreate)
MAKES_HANDLE(cublasLtMatmulPreferenceCreate)
MAKES_HANDLE(cublasLtMatrixLayoutCreate)
MAKES_HANDLE(cublasLtMatrixTransformDescCreate)
PUBLIC size_t cublasLtGetVersion() { return card().cuda_version / 1000 * 10000; }
PUBLIC size_t cublasLtGetCudartVersion() { return card().cuda_version; }
PUBLIC const char* cublasLtGetStatusName(int status) { return cublasGetStatusName(status); }
PUBLIC const char* cublasLtGetStatusString(int status) { return cublasGetStatusName(status); }
PUBLIC int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int asked, LtResult* results,
                                          int* found) {
  *found = asked > 0 ? 1 : 0;
  if (asked > 0) memset(results, 0, sizeof *results);
  return 0;
}

// --- cuSOLVER ------------------------------------------------------------------------------------------------------

MAKES_HANDLE(cusolverDnCreate)
MAKES_HANDLE(cusolverDnCreateParams)
MAKES_HANDLE(cusolverDnCreateGesvdjInfo)
MAKES_HANDLE(cusolverDnCreateSyevjInfo)

#define SOLVER_WORKSPACE(routine, position)                            \
  SETS_ARGUMENT(cusolverDnS##routine##_bufferSize, position, int, 0)   \
  SETS_ARGUMENT(cusolverDnD##routine##_bufferSize, position, int, 0)   \
  SETS_ARGUMENT(cusolverDnC##routine##_bufferSize, position, int, 0)   \
  SETS_ARGUMENT(cusolverDnZ##routine##_bufferSize, position, int, 0)
// Routines whose names differ between real and complex matrices.
#define SOLVER_WORKSPACE_NAMED(real, complex, position)                \
  SETS_ARGUMENT(cusolverDnS##real##_bufferSize, position, int, 0)      \
  SETS_ARGUMENT(cusolverDnD##real##_bufferSize, position, int, 0)      \
  SETS_ARGUMENT(cusolverDnC##complex##_bufferSize, position, int, 0)   \
  SETS_ARGUMENT(cusolverDnZ##complex##_bufferSize, position, int, 0)
SOLVER_WORKSPACE(getrf, 6)
SOLVER_WORKSPACE(potrf, 6)
SOLVER_WORKSPACE(geqrf, 6)
SOLVER_WORKSPACE(sytrf, 5)
SOLVER_WORKSPACE(gesvd, 4)
SOLVER_WORKSPACE(gesvdj, 13)
SOLVER_WORKSPACE(gesvdjBatched, 12)
SOLVER_WORKSPACE(gesvdaStridedBatched, 17)
SOLVER_WORKSPACE_NAMED(orgqr, ungqr, 8)
SOLVER_WORKSPACE_NAMED(ormqr, unmqr, 12)
SOLVER_WORKSPACE_NAMED(syevd, heevd, 8)
SOLVER_WORKSPACE_NAMED(syevj, heevj, 8)
SOLVER_WORKSPACE_NAMED(syevjBatched, heevjBatched, 8)
// The 64-bit interface: bytes on the device, bytes on the host.
SETS_TWO_ARGUMENTS(cusolverDnXgetrf_bufferSize, 9, size_t, 0)
SETS_TWO_ARGUMENTS(cusolverDnXgeqrf_bufferSize, 11, size_t, 0)
SETS_TWO_ARGUMENTS(cusolverDnXpotrf_bufferSize, 9, size_t, 0)
SETS_TWO_ARGUMENTS(cusolverDnXsyevd_bufferSize, 12, size_t, 0)
SETS_TWO_ARGUMENTS(cusolverDnXsyevBatched_bufferSize, 12, size_t, 0)
SETS_TWO_ARGUMENTS(cusolverDnXgeev_bufferSize, 18, size_t, 0)
SETS_TWO_ARGUMENTS(cusolverDnXsytrs_bufferSize, 12, size_t, 0)

// --- cuSPARSE ------------------------------------------------------------------------------------------------------

MAKES_HANDLE(cusparseCreate)
MAKES_HANDLE(cusparseCreateMatDescr)
MAKES_HANDLE(cusparseCreateBsrsv2Info)
MAKES_HANDLE(cusparseCreateBsrsm2Info)
MAKES_HANDLE(cusparseCreateCoo)
MAKES_HANDLE(cusparseCreateCsr)
MAKES_HANDLE(cusparseCreateCsc)
MAKES_HANDLE(cusparseCreateBsr)
MAKES_HANDLE(cusparseCreateDnMat)
MAKES_HANDLE(cusparseCreateConstDnMat)
MAKES_HANDLE(cusparseCreateDnVec)
MAKES_HANDLE(cusparseCreateConstDnVec)
MAKES_HANDLE(cusparseSpGEMM_createDescr)
MAKES_HANDLE(cusparseSpSV_createDescr)
MAKES_HANDLE(cusparseSpSM_createDescr)
PUBLIC const char* cusparseGetErrorString(int status) { return status ? "internal error" : "success"; }
PUBLIC const char* cusparseGetErrorName(int status) { return cusparseGetErrorString(status); }
SETS_ARGUMENT(cusparseSpMV_bufferSize, 10, size_t, 0)
SETS_ARGUMENT(cusparseSpMM_bufferSize, 11, size_t, 0)
SETS_ARGUMENT(cusparseSDDMM_bufferSize, 11, size_t, 0)
SETS_ARGUMENT(cusparseSpSV_bufferSize, 10, size_t, 0)
SETS_ARGUMENT(cusparseSpSM_bufferSize, 11, size_t, 0)
SETS_ARGUMENT(cusparseSpGEMM_workEstimation, 12, size_t, 0)
SETS_ARGUMENT(cusparseSpGEMM_compute, 12, size_t, 0)
SETS_ARGUMENT(cusparseXcoosort_bufferSizeExt, 7, size_t, 0)
SETS_ARGUMENT(cusparseXcsrsort_bufferSizeExt, 7, size_t, 0)
SETS_ARGUMENT(cusparseXcsrgeam2Nnz, 14, int, 0)
#define SPARSE_WORKSPACE(routine, position, Type)            \
  SETS_ARGUMENT(cusparseS##routine, position, Type, 0)       \
  SETS_ARGUMENT(cusparseD##routine, position, Type, 0)       \
  SETS_ARGUMENT(cusparseC##routine, position, Type, 0)       \
  SETS_ARGUMENT(cusparseZ##routine, position, Type, 0)
SPARSE_WORKSPACE(csrgeam2_bufferSizeExt, 20, size_t)
SPARSE_WORKSPACE(bsrsv2_bufferSize, 12, int)
SPARSE_WORKSPACE(bsrsm2_bufferSize, 14, int)
// Rows, columns and entries: how many entries a product has would have to be computed.
PUBLIC int cusparseSpMatGetSize(void*, int64_t* rows, int64_t* columns, int64_t* entries) {
  *rows = *columns = *entries = 0;
  return 0;
}

// --- cuSPARSELt ----------------------------------------------------------------------------------------------------

SETS_ARGUMENT(cusparseLtMatmulGetWorkspace, 3, size_t, 0)
SETS_TWO_ARGUMENTS(cusparseLtSpMMACompressedSize, 3, size_t, 0)
SETS_TWO_ARGUMENTS(cusparseLtSpMMACompressedSize2, 3, size_t, 0)
SETS_ARGUMENT(cusparseLtMatmulAlgGetAttribute, 4, int, 0)

// --- cuFFT and cuRAND ------------------------------------------------------------------------------------------------

PUBLIC int cufftCreate(int* plan) {
  *plan = 1;
  return 0;
}
SETS_ARGUMENT(cufftXtMakePlanMany, 13, size_t, 0)
SETS_ARGUMENT(cufftMakePlanMany, 11, size_t, 0)
SETS_ARGUMENT(cufftMakePlanMany64, 11, size_t, 0)
SETS_ARGUMENT(cufftGetSize, 2, size_t, 0)
MAKES_HANDLE(curandCreateGenerator)
MAKES_HANDLE(curandCreateGeneratorHost)
