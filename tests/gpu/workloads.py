"""The workloads of run.py: `workloads.py NAME [--quick]` prints a line of JSON with the seconds of each step and the results."""
import ctypes
import hashlib
import importlib
import json
import math
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # makes cuBLAS deterministic
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

WORKLOADS = {}


class Missing(Exception):
    """A framework is not installed, or has no CUDA."""


def workload(function):
    WORKLOADS[function.__name__] = function
    return function


def need(name):
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        raise Missing(str(missing)) from missing


def timed(step, wait, steps, warm=3):
    """Returns the seconds of each step, including the wait for the device."""
    for _ in range(warm):
        step()
    wait()
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        wait()
        seconds.append(time.perf_counter() - begin)
    return seconds


def digest(*arrays):
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


# --- The driver API ---

PTX = b"""
.version 6.5
.target sm_50
.address_size 64
.visible .entry square(.param .u64 values, .param .u32 count) {
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .f32 %f<3>;
  .reg .b64 %d<4>;
  ld.param.u64 %d1, [values];
  ld.param.u32 %r1, [count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  mul.wide.u32 %d2, %r5, 4;
  add.u64 %d3, %d1, %d2;
  ld.global.f32 %f1, [%d3];
  fma.rn.f32 %f2, %f1, %f1, %f1;
  st.global.f32 [%d3], %f2;
DONE:
  ret;
}
\0"""


@workload
def driver(quick):
    """the driver API alone: copies and 100 launches a step"""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *words):
        result = getattr(cuda, name)(*words)
        if result:
            raise RuntimeError(f"{name}: error {result}")

    context, module, kernel, memory = (ctypes.c_void_p() for _ in range(4))
    name = ctypes.create_string_buffer(200)
    call("cuInit", 0)
    call("cuDeviceGetName", name, 200, 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), PTX)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"square")
    count = 10_000 if quick else 4_000_000
    numbers = (ctypes.c_float * count)(*((i % 100) / 1000 for i in range(count)))
    back = (ctypes.c_float * count)()
    size = ctypes.c_size_t(4 * count)
    call("cuMemAlloc_v2", ctypes.byref(memory), size)
    length = ctypes.c_uint(count)
    words = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(length))

    def step():
        call("cuMemcpyHtoD_v2", memory, numbers, size)
        for _ in range(100):
            call("cuLaunchKernel", kernel, (count + 255) // 256, 1, 1, 256, 1, 1, 0, None, words, None)
        call("cuMemcpyDtoH_v2", back, memory, size)

    seconds = timed(step, lambda: call("cuCtxSynchronize"), 5 if quick else 20, 1)
    return {"seconds": seconds, "values": [float(x) for x in back[:100]], "digest": digest(memoryview(back)), "device": name.value.decode()}


# --- PyTorch ---

def torch_on_cuda():
    torch = need("torch")
    if not torch.cuda.is_available():
        raise Missing("this PyTorch has no CUDA device")
    torch.manual_seed(7)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    return torch


def transformer(torch, quick, dropout=0.0):
    nn = torch.nn
    width, layers, words = (64, 2, 200) if quick else (512, 6, 8000)
    batch, length = (2, 16) if quick else (8, 256)
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=dropout, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Embedding(words, width), nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, words))
    tokens = torch.randint(0, words, (batch, length + 1))
    return model.cuda(), tokens[:, :-1].cuda(), tokens[:, 1:].cuda()


def resnet50(torch):
    """ResNet-50 as in torchvision, which need not be installed."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, before, width, stride):
            super().__init__()
            after = 4 * width
            self.body = nn.Sequential(
                nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after))
            self.shortcut = nn.Identity() if stride == 1 and before == after else nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

        def forward(self, x):
            return torch.relu(self.body(x) + self.shortcut(x))

    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for n in range(blocks):
            layers.append(Block(before, width, stride if n == 0 else 1))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


def outcome(torch, seconds, losses, model=None):
    values = [float(loss) for loss in losses]
    parameters = [p.detach().float().cpu().numpy() for p in model.parameters()] if model is not None else []
    if not all(map(math.isfinite, values)):
        raise RuntimeError(f"not finite: {values}")
    return {"seconds": seconds, "values": values, "digest": digest(*parameters), "device": f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"}


def train(torch, model, inputs, targets, quick, autocast=None, scaler=None, flatten=True):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
            output = model(inputs)
            loss = torch.nn.functional.cross_entropy(output.flatten(0, 1) if flatten else output, targets.flatten())
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())

    seconds = timed(step, torch.cuda.synchronize, 3 if quick else 30)
    return outcome(torch, seconds, losses, model)


@workload
def torch_transformer(quick):
    """PyTorch, a training step of a transformer (6 layers, width 512, 8 x 256 tokens)"""
    torch = torch_on_cuda()
    return train(torch, *transformer(torch, quick), quick)


@workload
def torch_transformer_bf16(quick):
    """the same with automatic mixed precision, bfloat16"""
    torch = torch_on_cuda()
    return train(torch, *transformer(torch, quick), quick, torch.bfloat16)


@workload
def torch_transformer_fp16(quick):
    """the same, half precision with a gradient scaler"""
    torch = torch_on_cuda()
    return train(torch, *transformer(torch, quick), quick, torch.float16, torch.amp.GradScaler("cuda"))


@workload
def torch_resnet50(quick):
    """PyTorch, a training step of ResNet-50 (batch 32, mixed precision, channels last)"""
    torch = torch_on_cuda()
    batch, side = (2, 64) if quick else (32, 224)
    model = resnet50(torch).cuda().to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, side, side).cuda().to(memory_format=torch.channels_last)
    return train(torch, model, images, torch.randint(0, 1000, (batch,)).cuda(), quick, torch.bfloat16, flatten=False)


@workload
def torch_inference(quick):
    """PyTorch, inference of the transformer, one sequence at a time"""
    torch = torch_on_cuda()
    model, tokens, _ = transformer(torch, quick)
    model.eval()
    results = []

    def step():
        with torch.inference_mode():
            results.append(model(tokens[:1])[0, -1].float().logsumexp(0))

    seconds = timed(step, torch.cuda.synchronize, 5 if quick else 100)
    return outcome(torch, seconds, results)


@workload
def torch_compile(quick):
    """PyTorch, the transformer's training step compiled (torch.compile, Triton)"""
    torch = torch_on_cuda()
    need("triton")
    model, inputs, targets = transformer(torch, quick)
    return train(torch, torch.compile(model), inputs, targets, quick, torch.bfloat16)


@workload
def torch_graph(quick):
    """PyTorch, the training step as one CUDA graph"""
    torch = torch_on_cuda()
    model, inputs, targets = transformer(torch, quick)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []

    def replay():
        graph.replay()
        losses.append(loss.detach().clone())

    seconds = timed(replay, torch.cuda.synchronize, 3 if quick else 30)
    return outcome(torch, seconds, losses, model)


class Images:
    """A data set that takes no time to compute; at module level, so that the loader's processes can import it."""

    def __init__(self, count, side):
        self.count, self.side = count, side

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        import torch
        return torch.full((3, self.side, self.side), index % 256, dtype=torch.uint8), index


@workload
def torch_data_loader(quick):
    """PyTorch, batches from a loader's two processes through pinned memory (64 images of 3 x 224 x 224 bytes each)"""
    torch = torch_on_cuda()
    batch, batches, side = (4, 4, 32) if quick else (64, 40, 224)
    loader = torch.utils.data.DataLoader(Images(batch * batches, side), batch, num_workers=2, pin_memory=True, persistent_workers=True)
    weights = torch.randn(3 * side * side, 64, device="cuda")
    sums, seconds = [], []
    for _ in range(2):
        begin = time.perf_counter()
        for images, _ in loader:
            values = images.cuda(non_blocking=True).flatten(1).float() / 255
            sums.append((values @ weights).sum())
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - begin) / batches)
    return outcome(torch, seconds[1:], sums)


@workload
def torch_copies(quick):
    """PyTorch, 256 MiB to the device and back, pinned"""
    torch = torch_on_cuda()
    count = (1 if quick else 64) << 20
    there = torch.arange(count, dtype=torch.int32).pin_memory()
    back = torch.empty_like(there).pin_memory()
    device = torch.empty(count, dtype=torch.int32, device="cuda")

    def step():
        device.copy_(there, non_blocking=True)
        device.add_(1)
        back.copy_(device, non_blocking=True)

    seconds = timed(step, torch.cuda.synchronize, 3 if quick else 10)
    return {**outcome(torch, seconds, [back[:1000].sum(), back[-1]]), "digest": digest(back.numpy())}


# --- JAX ---

@workload
def jax_training(quick):
    """JAX, a compiled training step of a perceptron (4 layers of 2048, batch 1024)"""
    jax = need("jax")
    jnp = jax.numpy
    try:
        device = jax.devices("cuda")[0]
    except RuntimeError as missing:
        raise Missing(str(missing)) from missing
    width, batch, layers = (64, 32, 2) if quick else (2048, 1024, 4)
    keys = jax.random.split(jax.random.PRNGKey(3), layers + 2)
    state = [[jax.random.normal(key, (width, width)) / math.sqrt(width) for key in keys[:layers]]]
    x, y = (jax.random.normal(key, (batch, width)) for key in keys[layers:])

    def loss_of(weights):
        value = x
        for weight in weights:
            value = jnp.tanh(value @ weight)
        return jnp.mean((value - y) ** 2)

    @jax.jit
    def update(weights):
        loss, gradients = jax.value_and_grad(loss_of)(weights)
        return loss, [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients)]

    losses = []

    def step():
        loss, state[0] = update(state[0])
        losses.append(loss)

    seconds = timed(step, lambda: jax.block_until_ready(state[0]), 3 if quick else 50)
    numpy = need("numpy")
    return {"seconds": seconds, "values": [float(loss) for loss in losses], "digest": digest(*map(numpy.asarray, state[0])),
            "device": f"{device.device_kind}, JAX {jax.__version__}"}


# --- CuPy ---

def cupy_on_cuda():
    cupy = need("cupy")
    try:
        cupy.cuda.Device().compute_capability
    except cupy.cuda.runtime.CUDARuntimeError as missing:
        raise Missing(str(missing)) from missing
    return cupy


def cupy_outcome(cupy, seconds, results):
    arrays = [cupy.asnumpy(result) for result in results]
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return {"seconds": seconds, "values": [float(abs(array).sum()) for array in arrays], "digest": digest(*arrays),
            "device": f"{name}, CuPy {cupy.__version__}"}


@workload
def cupy_kernels(quick):
    """CuPy, elementwise and fused kernels, reductions and a raw kernel"""
    cupy = cupy_on_cuda()
    kernel = cupy.RawKernel('extern "C" __global__ void f(float* v, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) v[i] = sinf(v[i]) + i % 7; }', "f")
    count = 10_000 if quick else 10_000_000
    results = []

    def step():
        values = cupy.arange(count, dtype=cupy.float32) / count
        kernel(((count + 255) // 256,), (256,), (values, cupy.int32(count)))
        values = cupy.sqrt(values * values + 1)
        results[:] = [values[:1000], values.sum(), values.max()]

    seconds = timed(step, cupy.cuda.Device().synchronize, 3 if quick else 30)
    return cupy_outcome(cupy, seconds, results)


@workload
def cupy_libraries(quick):
    """CuPy, cuBLAS, cuFFT, cuRAND, cuSOLVER, cuSPARSE and a sort"""
    cupy = cupy_on_cuda()
    side = 64 if quick else 2048
    try:
        import cupyx.scipy.sparse as sparse
        cupy.random.seed(11)
        matrix = cupy.random.rand(side, side, dtype=cupy.float32)
    except ImportError as missing:
        raise Missing(str(missing)) from missing
    results = []

    def step():
        product = matrix @ matrix.T + side * cupy.eye(side, dtype=cupy.float32)
        solved = cupy.linalg.solve(product, matrix[0])
        spectrum = cupy.abs(cupy.fft.rfft2(matrix))
        sparse_product = sparse.csr_matrix(cupy.where(matrix > 0.95, matrix, 0)) @ matrix[0]
        results[:] = [product[0], solved, spectrum[0], sparse_product, cupy.sort(matrix.ravel())[:1000]]

    seconds = timed(step, cupy.cuda.Device().synchronize, 3 if quick else 10)
    return cupy_outcome(cupy, seconds, results)


def main():
    try:
        result = WORKLOADS[sys.argv[1]]("--quick" in sys.argv)
    except Missing as missing:
        result = {"skipped": str(missing)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
