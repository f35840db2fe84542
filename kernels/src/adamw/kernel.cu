// Clip, moments, decay, update and cast in one pass: 30 bytes a parameter.
struct Step { float lr, beta1, beta2, eps, decay, correction1, correction2, scale; };

__device__ __forceinline__ void update(float g, float& m, float& v, float& p, const Step& s) {
  g *= s.scale;
  m = s.beta1 * m + (1.f - s.beta1) * g;
  v = s.beta2 * v + (1.f - s.beta2) * g * g;
  p -= s.lr * ((m * s.correction1) / (sqrtf(v * s.correction2) + s.eps) + s.decay * p);
}

extern "C" __global__ void adamw(const float* grad, float* m, float* v, float* master, u16* weight, i64 n, float lr, float beta1,
                                 float beta2, float eps, float decay, float correction1, float correction2, float scale) {
  Step s{lr, beta1, beta2, eps, decay, correction1, correction2, scale};
  i64 stride = (i64)gridDim.x * blockDim.x, start = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  for (i64 i = start; i < n / 4; i += stride) {
    float4 g = reinterpret_cast<const float4*>(grad)[i], a = reinterpret_cast<float4*>(m)[i],
           b = reinterpret_cast<float4*>(v)[i], p = reinterpret_cast<float4*>(master)[i];
    update(g.x, a.x, b.x, p.x, s);
    update(g.y, a.y, b.y, p.y, s);
    update(g.z, a.z, b.z, p.z, s);
    update(g.w, a.w, b.w, p.w, s);
    reinterpret_cast<float4*>(m)[i] = a;
    reinterpret_cast<float4*>(v)[i] = b;
    reinterpret_cast<float4*>(master)[i] = p;
    reinterpret_cast<uint2*>(weight)[i] = uint2{pack2(p.x, p.y), pack2(p.z, p.w)};
  }
  for (i64 i = n / 4 * 4 + start; i < n; i += stride) {
    update(grad[i], m[i], v[i], master[i], s);
    weight[i] = to_bf(master[i]);
  }
}
