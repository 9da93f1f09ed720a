"""Tests JAX's use of the CUDA API, through poold on softgpu with SOFTGPU_SKIP_MACHINE_CODE=1.

XLA compiles to machine code, so its kernels are loaded and launched but do nothing. The tests check the parts that do not
depend on a kernel's results: that JAX uses the pool's devices and not the CPU, copies, memory accounting, errors, and that
every call of compilation, execution and libraries succeeds.
"""
import os
import unittest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np


def pattern(*shape, dtype=np.float32):
    """Nonzero, distinct values, so that a missing copy is detected."""
    return (np.arange(np.prod(shape)) % 251 + 1).reshape(shape).astype(dtype)


class Devices(unittest.TestCase):
    def test_default_backend_is_the_pool(self):
        self.assertEqual(jax.default_backend(), "gpu")
        self.assertEqual([device.platform for device in jax.devices()], ["gpu"] * 2)
        self.assertIn("softgpu", jax.devices()[0].device_kind)

    def test_memory_accounting(self):
        # Other tests' arrays are small, and JAX may free them at any time.
        device, others = jax.devices()[0], 1 << 20
        before = device.memory_stats()["bytes_in_use"]
        array = jax.device_put(pattern(16 << 20), device).block_until_ready()
        self.assertGreaterEqual(device.memory_stats()["bytes_in_use"], before + array.nbytes - others)
        array.delete()
        self.assertLess(device.memory_stats()["bytes_in_use"], before + others)

    def test_out_of_memory(self):
        limit = jax.devices()[0].memory_stats()["bytes_limit"]
        with self.assertRaisesRegex(jax.errors.JaxRuntimeError, "RESOURCE_EXHAUSTED"):
            jnp.zeros(2 * limit, jnp.uint8).block_until_ready()
        np.testing.assert_array_equal(np.asarray(jax.device_put(pattern(1000))), pattern(1000))


class Copies(unittest.TestCase):
    def test_types_there_and_back(self):
        for dtype in (np.uint8, np.int32, np.float16, jnp.bfloat16, np.float32, np.complex64, np.bool_):
            there = pattern(17, 31, dtype=dtype)
            np.testing.assert_array_equal(np.asarray(jax.device_put(there)), there)

    def test_between_devices(self):
        first, second = jax.devices()
        there = jax.device_put(jax.device_put(pattern(300, 100), first), second)
        self.assertEqual(there.devices(), {second})
        np.testing.assert_array_equal(np.asarray(there), pattern(300, 100))

    def test_sharded_array(self):
        mesh = jax.make_mesh((2,), ("rows",))
        sharded = jax.device_put(pattern(64, 10), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows")))
        self.assertEqual({shard.data.shape for shard in sharded.addressable_shards}, {(32, 10)})
        np.testing.assert_array_equal(np.asarray(sharded), pattern(64, 10))


class Programs(unittest.TestCase):
    def test_compiled_step_with_gradient(self):
        def loss(weights, values):
            hidden = jnp.tanh(values @ weights["first"])
            return jnp.mean((hidden @ weights["second"]) ** 2)

        @jax.jit
        def step(weights, values):
            value, gradient = jax.value_and_grad(loss)(weights, values)
            return value, jax.tree.map(lambda weight, change: weight - 0.1 * change, weights, gradient)

        weights = {"first": jnp.zeros((16, 32)), "second": jnp.zeros((32, 4))}
        for _ in range(3):
            value, weights = step(weights, jnp.zeros((8, 16)))
        self.assertEqual(value.block_until_ready().shape, ())
        self.assertEqual(weights["first"].shape, (16, 32))

    def test_libraries(self):
        image, kernel = jnp.zeros((2, 8, 16, 16)), jnp.zeros((4, 8, 3, 3))
        self.assertEqual(jax.lax.conv(image, kernel, (1, 1), "SAME").block_until_ready().shape, (2, 4, 16, 16))
        self.assertEqual(jnp.fft.rfft(jnp.zeros((4, 256))).block_until_ready().shape, (4, 129))
        self.assertEqual(jnp.linalg.qr(jnp.zeros((16, 16)))[0].block_until_ready().shape, (16, 16))
        self.assertEqual(jax.random.normal(jax.random.key(0), (1000,)).block_until_ready().shape, (1000,))

    def test_loop_and_donated_memory(self):
        @jax.jit
        def loop(values):
            return jax.lax.fori_loop(0, 5, lambda _, now: now + 1, values)

        self.assertEqual(loop(jnp.zeros(1000)).block_until_ready().shape, (1000,))
        values = jax.device_put(pattern(1000))
        jax.jit(lambda given: given * 2, donate_argnums=0)(values).block_until_ready()
        self.assertTrue(values.is_deleted())

    def test_collective_over_two_devices(self):
        mesh = jax.make_mesh((2,), ("rows",))
        rows = jax.sharding.PartitionSpec("rows")
        total = jax.jit(jax.shard_map(lambda part: jax.lax.psum(part, "rows"), mesh=mesh, in_specs=rows, out_specs=jax.sharding.PartitionSpec()))
        given = jax.device_put(pattern(4, 10), jax.sharding.NamedSharding(mesh, rows))
        self.assertEqual(total(given).block_until_ready().shape, (2, 10))

    def test_callback_to_the_host(self):
        seen = []

        @jax.jit
        def function(values):
            jax.debug.callback(lambda given: seen.append(given.shape), values)
            return values

        function(jax.device_put(pattern(40))).block_until_ready()
        jax.effects_barrier()
        self.assertEqual(seen, [(40,)])


if __name__ == "__main__":
    print(f"jax {jax.__version__}", flush=True)
    unittest.main()
