"""Tests PyTorch's use of the CUDA API, through poold on softgpu with SOFTGPU_SKIP_MACHINE_CODE=1.

PyTorch's wheels hold machine code, so its kernels are loaded and launched here but do nothing. The tests check what
does not depend on a kernel: copies (the driver executes them), memory accounting, captured copies, errors, what other
processes see, and that every library call succeeds.
"""
import os
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.utils.data import DataLoader, Dataset

MIB = 1 << 20
PATIENCE = 120  # seconds
DEVICE = torch.device("cuda", 0)


def pattern(count, seed=0):
    """Nonzero, distinct values on the host, so that a missing copy is detected."""
    return torch.arange(1, count + 1, dtype=torch.float32) + 1000 * seed


def model():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, 32),
                         nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 10)).to(DEVICE)


class Numbers(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return pattern(100, index), index


class Copies(unittest.TestCase):
    def test_device_properties(self):
        self.assertTrue(torch.cuda.is_available())
        properties = torch.cuda.get_device_properties(DEVICE)
        free, total = torch.cuda.mem_get_info()
        self.assertEqual(total, properties.total_memory)
        self.assertTrue(0 < free <= total)
        self.assertEqual((properties.major, properties.minor), torch.cuda.get_device_capability())

    def test_types_there_and_back(self):
        for dtype in (torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.bool):
            there = (pattern(1000) % 7).to(dtype)
            self.assertTrue(torch.equal(there.to(DEVICE).cpu(), there), dtype)

    def test_streams_and_events(self):
        values, back = pattern(100_000).pin_memory(), torch.zeros(100_000).pin_memory()
        first, second = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(first):
            begin.record()
            there = values.to(DEVICE, non_blocking=True)
            end.record()
        second.wait_event(end)
        with torch.cuda.stream(second):
            there.record_stream(second)
            back.copy_(there, non_blocking=True)
        second.synchronize()
        self.assertTrue(torch.equal(back, values))
        self.assertTrue(second.query() and end.query())
        self.assertGreaterEqual(begin.elapsed_time(end), 0)

    def test_pinned_loader_with_workers(self):
        loader = DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True, persistent_workers=True)
        for _ in range(2):
            seen = []
            for values, indices in loader:
                self.assertTrue(values.is_pinned())
                there = values.to(DEVICE, non_blocking=True)
                expected = torch.stack([pattern(100, int(index)) for index in indices])
                self.assertTrue(torch.equal(there.cpu(), expected))
                seen += indices.tolist()
            self.assertEqual(sorted(seen), list(range(40)))


class Libraries(unittest.TestCase):
    def test_automatic_mixed_precision(self):
        for dtype in (torch.float16, torch.bfloat16):
            network = model()
            optimizer = torch.optim.AdamW(network.parameters(), fused=True)
            scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
            for _ in range(2):
                with torch.autocast("cuda", dtype=dtype):
                    result = network(torch.zeros(4, 3, 16, 16, device=DEVICE))
                    self.assertEqual(result.dtype, dtype)
                    loss = nn.functional.cross_entropy(result, torch.zeros(4, dtype=torch.long, device=DEVICE))
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                for parameter in network.parameters():
                    self.assertEqual((parameter.grad.device, parameter.grad.shape), (DEVICE, parameter.shape))
                optimizer.zero_grad()
            torch.cuda.synchronize()

    def test_attention_transforms_and_solvers(self):
        query = torch.zeros(2, 4, 64, 32, device=DEVICE, dtype=torch.float16, requires_grad=True)
        nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
        self.assertEqual(query.grad.shape, query.shape)
        self.assertEqual(torch.fft.rfft(torch.zeros(8, 256, device=DEVICE)).shape, (8, 129))
        self.assertEqual(torch.linalg.qr(torch.zeros(8, 8, device=DEVICE))[0].shape, (8, 8))
        sparse = torch.eye(8, device=DEVICE).to_sparse_csr()
        self.assertEqual((sparse @ torch.zeros(8, 3, device=DEVICE)).shape, (8, 3))
        self.assertEqual(torch.rand(100, device=DEVICE).cpu().shape, (100,))
        torch.cuda.synchronize()

    def test_profiler(self):
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            a = torch.zeros(64, 64, device=DEVICE)
            with torch.profiler.record_function("product"):
                a @ a
            torch.cuda.synchronize()
        names = {event.key for event in profile.key_averages()}
        self.assertLessEqual({"product", "aten::mm"}, names)
        with tempfile.TemporaryDirectory() as folder:
            profile.export_chrome_trace(os.path.join(folder, "trace.json"))
        with torch.cuda.profiler.profile(), torch.cuda.nvtx.range("range"):
            torch.zeros(10, device=DEVICE)


class Graphs(unittest.TestCase):
    def test_captured_copies(self):
        source, middle = torch.empty(1000, device=DEVICE), torch.empty(1000, device=DEVICE)
        back = torch.zeros(1000).pin_memory()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            middle.copy_(source)
            inner = middle.clone()  # from the graph's own memory pool
            back.copy_(inner, non_blocking=True)
        self.assertTrue(torch.equal(back, torch.zeros(1000)), "a captured copy was executed")
        for seed in (1, 2):
            source.copy_(pattern(1000, seed))
            graph.replay()
            torch.cuda.synchronize()
            self.assertTrue(torch.equal(back, pattern(1000, seed)))

    def test_graphed_training(self):
        network = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(DEVICE)
        given = torch.zeros(16, 32, device=DEVICE, requires_grad=True)
        graphed = torch.cuda.make_graphed_callables(network, (given,))
        for _ in range(3):
            graphed(given).sum().backward()
        torch.cuda.synchronize()
        self.assertEqual(given.grad.shape, given.shape)


class Memory(unittest.TestCase):
    def setUp(self):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def test_out_of_memory_and_retry(self):
        free, total = torch.cuda.mem_get_info()
        before = torch.cuda.memory_stats()
        half = [torch.empty(free // 4, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
        del half  # kept in the cache of PyTorch's allocator, which frees it when the device has no more memory
        most = torch.empty(free * 3 // 4, dtype=torch.uint8, device=DEVICE)
        after = torch.cuda.memory_stats()
        self.assertEqual(after["num_alloc_retries"] - before.get("num_alloc_retries", 0), 1)
        self.assertEqual(after["num_ooms"], before.get("num_ooms", 0))
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(total, dtype=torch.uint8, device=DEVICE)
        self.assertEqual(torch.cuda.memory_stats()["num_ooms"], after["num_ooms"] + 1)
        del most
        self.assertTrue(torch.equal(pattern(100_000).to(DEVICE).cpu(), pattern(100_000)))
        torch.cuda.empty_cache()
        self.assertGreater(torch.cuda.mem_get_info()[0], free - 64 * MIB)

    def test_other_allocators(self):
        """The allocator is chosen before the first call, so each is tested in a separate process."""
        for choice in ("expandable_segments:True", "backend:cudaMallocAsync"):
            with self.subTest(choice):
                done = subprocess.run([sys.executable, __file__, "--allocator"], env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": choice},
                                      capture_output=True, text=True, timeout=PATIENCE)
                self.assertEqual(done.returncode, 0, done.stderr)


def use_an_allocator():
    kept = [pattern(n * 1000, n).to(DEVICE) for n in range(1, 60)]
    del kept[::2]
    kept += [pattern(n * 3000, n).to(DEVICE) for n in range(1, 60)]
    for values in kept:
        host = values.cpu()
        assert torch.equal(host, pattern(len(host), int(host[0]) // 1000)), len(host)
    try:
        torch.empty(torch.cuda.mem_get_info()[1] * 2, dtype=torch.uint8, device=DEVICE)
    except torch.OutOfMemoryError:
        return
    raise AssertionError("an allocation of twice the device's memory succeeded")


def overwrite(queue, done):
    values, seed = queue.get(timeout=PATIENCE)
    seen = values.cpu()
    values.copy_(pattern(len(values), seed))
    torch.cuda.synchronize()
    done.put((seen.numpy().tolist(), str(values.device)))
    del values
    queue.get(timeout=PATIENCE)


def rank(number, folder):
    torch.cuda.set_device(number)
    device = torch.device("cuda", number)
    dist.init_process_group("nccl", init_method=f"file://{folder}/rendezvous", rank=number, world_size=2)
    dist.all_reduce(torch.zeros(100, device=device))
    second = dist.new_group([0, 1])  # a separate communicator
    dist.all_reduce(torch.zeros(100, device=device), group=second)
    network = nn.parallel.DistributedDataParallel(nn.Linear(16, 4).to(device), device_ids=[number], process_group=second,
                                                  init_sync=False)  # it would compare the results of an all-gather
    for _ in range(2):
        network(torch.zeros(8, 16, device=device)).sum().backward()
    dist.barrier(device_ids=[number])
    torch.cuda.synchronize()
    communicators = {group._get_backend(device)._comm_ptr() for group in (dist.group.WORLD, second)}
    assert len(communicators - {0}) == 2, communicators
    dist.destroy_process_group()


class Processes(unittest.TestCase):
    def test_spawned_process_writes_to_shared_memory(self):
        spawn = multiprocessing.get_context("spawn")
        queue, done = spawn.Queue(), spawn.Queue()
        process = spawn.Process(target=overwrite, args=(queue, done), daemon=True)
        process.start()
        values = pattern(5000, 1).to(DEVICE)
        queue.put((values, 2))
        seen, device = done.get(timeout=PATIENCE)
        self.assertEqual((seen, device), (pattern(5000, 1).tolist(), str(DEVICE)))
        self.assertTrue(torch.equal(values.cpu(), pattern(5000, 2)))
        queue.put("over")
        process.join(PATIENCE)
        self.assertEqual(process.exitcode, 0)

    def test_distributed_data_parallel_with_two_communicators(self):
        self.assertGreaterEqual(torch.cuda.device_count(), 2)
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(rank, args=(folder,), nprocs=2)  # raises exceptions of the ranks


if __name__ == "__main__":
    if sys.argv[1:] == ["--allocator"]:
        use_an_allocator()
    else:
        print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, "
              f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}", flush=True)
        unittest.main()
