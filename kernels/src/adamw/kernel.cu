// Clip, moments, decay, update and cast in one pass: 30 bytes a parameter.
extern "C" __global__ void adamw(const float* grad, float* m, float* v, float* master, u16* weight, i64 n, float lr, float beta1,
                                 float beta2, float eps, float decay, float correction1, float correction2, float scale) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    float g = grad[i] * scale;
    float a = beta1 * m[i] + (1.f - beta1) * g;
    float b = beta2 * v[i] + (1.f - beta2) * g * g;
    m[i] = a;
    v[i] = b;
    float p = master[i];
    p -= lr * ((a * correction1) / (sqrtf(b * correction2) + eps) + decay * p);
    master[i] = p;
    weight[i] = to_bf(p);
  }
}
