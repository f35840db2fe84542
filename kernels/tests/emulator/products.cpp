// cublasLt's part: column-major products of bf16 matrices, summed in fp32, some of them side by side.
#include <cstdint>
#include <cstring>
#include <vector>

#include "device.h"
#include "graphs.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

const int F32 = 0;  // cudaDataType_t

struct Layout {
  int type;
  uint64_t rows, cols;
  int64_t leading;
  int32_t count = 1;
  int64_t step = 0;
};
struct Product {
  int32_t transpose_a = 0, transpose_b = 0;
};

float load(const void* from, int type, int64_t i) {
  if (type == F32) return static_cast<const float*>(from)[i];
  return emulator::bits<float>(uint32_t(static_cast<const uint16_t*>(from)[i]) << 16);
}
void store(void* to, int type, int64_t i, float v) {
  if (type == F32) static_cast<float*>(to)[i] = v;
  else static_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(emulator::bf16(v));
}

}  // namespace

API size_t cublasLtGetVersion() { return 1; }
API int cublasLtCreate(void** handle) { *handle = new char; return 0; }
API int cublasLtDestroy(void* handle) { delete static_cast<char*>(handle); return 0; }
API int cublasLtMatmulDescCreate(void** product, int, int) { *product = new Product; return 0; }
API int cublasLtMatmulDescDestroy(void* product) { delete static_cast<Product*>(product); return 0; }
API int cublasLtMatmulDescSetAttribute(void* of, int which, const void* value, size_t) {
  Product& product = *static_cast<Product*>(of);
  const int TRANSPOSE_A = 3, TRANSPOSE_B = 4;
  if (which == TRANSPOSE_A) memcpy(&product.transpose_a, value, 4);
  if (which == TRANSPOSE_B) memcpy(&product.transpose_b, value, 4);
  return 0;
}
API int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t cols, int64_t leading) {
  *layout = new Layout{type, rows, cols, leading};
  return 0;
}
API int cublasLtMatrixLayoutDestroy(void* layout) { delete static_cast<Layout*>(layout); return 0; }
API int cublasLtMatrixLayoutSetAttribute(void* of, int which, const void* value, size_t) {
  Layout& layout = *static_cast<Layout*>(of);
  const int COUNT = 5, STEP = 6;
  if (which == COUNT) memcpy(&layout.count, value, 4);
  if (which == STEP) memcpy(&layout.step, value, 8);
  return 0;
}
API int cublasLtMatmulPreferenceCreate(void** made) { *made = new char; return 0; }
API int cublasLtMatmulPreferenceDestroy(void* made) { delete static_cast<char*>(made); return 0; }
API int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return 0; }

const size_t PROPOSAL_BYTES = 96;  // cublasLtMatmulHeuristicResult_t, all zero: no workspace, success
API int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* proposals, int* count) {
  memset(proposals, 0, PROPOSAL_BYTES);
  *count = 1;
  return 0;
}
API int cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*, const void*, void* proposal) {
  memset(proposal, 0, PROPOSAL_BYTES);
  return 0;
}

static void multiply(Product product, Layout of_a, Layout of_b, Layout of_c, float alpha, const void* a, const void* b, float beta,
                     const void* c, void* d) {
  size_t m = of_c.rows, n = of_c.cols, k = product.transpose_a ? of_a.rows : of_a.cols;
  std::vector<float> left(m * k), column(m);
  for (int64_t one = 0; one < of_c.count; one++) {
    for (size_t i = 0; i < m; i++)
      for (size_t p = 0; p < k; p++) {
        int64_t at = product.transpose_a ? i * of_a.leading + p : p * of_a.leading + i;
        left[p * m + i] = load(a, of_a.type, one * of_a.step + at);
      }
    for (size_t j = 0; j < n; j++) {
      std::fill(column.begin(), column.end(), 0.f);
      for (size_t p = 0; p < k; p++) {
        int64_t at = product.transpose_b ? p * of_b.leading + j : j * of_b.leading + p;
        float y = load(b, of_b.type, one * of_b.step + at);
        for (size_t i = 0; i < m; i++) column[i] += left[p * m + i] * y;
      }
      for (size_t i = 0; i < m; i++) {
        int64_t at = one * of_c.step + j * of_c.leading + i;
        float before = beta == 0.f ? 0.f : beta * load(c, of_c.type, at);
        store(d, of_c.type, at, alpha * column[i] + before);
      }
    }
  }
}

API int cublasLtMatmul(void*, void* of, const float* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
                       const float* beta, const void* c, void* c_layout, void* d, void*, const void*, void*, size_t,
                       void* stream) {
  Product product = *static_cast<Product*>(of);
  Layout of_a = *static_cast<Layout*>(a_layout), of_b = *static_cast<Layout*>(b_layout);
  Layout of_c = *static_cast<Layout*>(c_layout);
  float by = *alpha, before = *beta;
  return emulator::in_order(stream, [=] { multiply(product, of_a, of_b, of_c, by, a, b, before, c, d); });
}
