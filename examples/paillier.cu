// Adds encrypted numbers with Paillier's scheme, as federated learning uses it to sum gradients. Two parties
// encrypt their numbers, an aggregator multiplies the ciphertexts, which adds the plaintexts, and the owner
// of the key decrypts the sums. One thread computes one 2048-bit modular exponentiation. The key is fixed, so
// that runs can be compared; real use needs a new key and secret random numbers.
#include <openssl/bn.h>

#include <memory>
#include <vector>

#include "common/example.h"

constexpr int kLimbs = 64;  // 2048 bits, least significant limb first
constexpr int kThreads = 32;

struct Number {
  uint32_t limb[kLimbs];
};

struct Exponent {
  Number value;
  int bits;
};

struct PublicKey {
  Number n;
  Number n_squared;          // the modulus of every operation
  Number montgomery_one;     // 2^2048 mod n^2
  Number montgomery_square;  // 2^4096 mod n^2
  uint32_t negated_inverse;  // -1 / n^2 mod 2^32
};

__constant__ PublicKey key;

// result = a * b / 2^2048 mod n^2 (Montgomery); result may be a or b.
__device__ __noinline__ void multiply(const Number& a, const Number& b, Number& result) {
  const uint32_t* modulus = key.n_squared.limb;
  uint32_t sum[kLimbs + 2] = {};
  for (int i = 0; i < kLimbs; ++i) {
    uint64_t carry = 0;
    for (int j = 0; j < kLimbs; ++j) {
      carry += sum[j] + static_cast<uint64_t>(a.limb[j]) * b.limb[i];
      sum[j] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    carry += sum[kLimbs];
    sum[kLimbs] = static_cast<uint32_t>(carry);
    sum[kLimbs + 1] = static_cast<uint32_t>(carry >> 32);

    // Add the multiple of the modulus that clears the lowest limb, then shift that limb out.
    const uint32_t factor = sum[0] * key.negated_inverse;
    carry = (sum[0] + static_cast<uint64_t>(factor) * modulus[0]) >> 32;
    for (int j = 1; j < kLimbs; ++j) {
      carry += sum[j] + static_cast<uint64_t>(factor) * modulus[j];
      sum[j - 1] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    carry += sum[kLimbs];
    sum[kLimbs - 1] = static_cast<uint32_t>(carry);
    sum[kLimbs] = sum[kLimbs + 1] + static_cast<uint32_t>(carry >> 32);
  }

  uint64_t borrow = 0;
  for (int j = 0; j < kLimbs; ++j) {
    const uint64_t difference = static_cast<uint64_t>(sum[j]) - modulus[j] - borrow;
    result.limb[j] = static_cast<uint32_t>(difference);
    borrow = difference >> 63;
  }
  if (borrow > sum[kLimbs])
    for (int j = 0; j < kLimbs; ++j) result.limb[j] = sum[j];
}

// base ^ exponent in Montgomery form, four bits of the exponent at a time.
__device__ void power(Number base, const Exponent& exponent, Number& result) {
  Number powers[16];
  powers[0] = key.montgomery_one;
  multiply(base, key.montgomery_square, powers[1]);
  for (int i = 2; i < 16; ++i) multiply(powers[i - 1], powers[1], powers[i]);

  result = key.montgomery_one;
  for (int bit = (exponent.bits - 1) / 4 * 4; bit >= 0; bit -= 4) {
    for (int i = 0; i < 4; ++i) multiply(result, result, result);
    multiply(result, powers[(exponent.value.limb[bit / 32] >> (bit % 32)) & 15], result);
  }
}

// ciphertext = (1 + message * n) * random^n mod n^2
__global__ void encrypt(const uint64_t* messages, const Number* randoms, Exponent n, Number* ciphertexts,
                        int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  Number blinding;
  power(randoms[i], n, blinding);

  Number plain = {{1}};
  for (int part = 0; part < 2; ++part) {
    const uint32_t message = static_cast<uint32_t>(messages[i] >> (32 * part));
    uint64_t carry = 0;
    for (int j = 0; j + part < kLimbs; ++j) {
      carry += plain.limb[j + part] + static_cast<uint64_t>(message) * key.n.limb[j];
      plain.limb[j + part] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
  }
  multiply(plain, blinding, ciphertexts[i]);  // leaves Montgomery form, because only one factor is in it
}

__global__ void add_encrypted(const Number* a, const Number* b, Number* sums, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  Number factor;
  multiply(a[i], key.montgomery_square, factor);
  multiply(factor, b[i], sums[i]);
}

// Computes ciphertext^lambda mod n^2: the decryption without its last, cheap step, which main() does.
__global__ void decrypt(const Number* ciphertexts, Exponent lambda, Number* results, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  Number result;
  power(ciphertexts[i], lambda, result);
  const Number one = {{1}};
  multiply(result, one, results[i]);
}

// OpenSSL's big integers, for the key and for the comparison on the CPU.
struct BignumFree {
  void operator()(BIGNUM* number) const { BN_free(number); }
  void operator()(BN_CTX* context) const { BN_CTX_free(context); }
};
using Bignum = std::unique_ptr<BIGNUM, BignumFree>;

static void require(int ok) {
  if (ok) return;
  std::fprintf(stderr, "OpenSSL failed\n");
  std::exit(EXIT_FAILURE);
}

static Bignum bignum(unsigned long value = 0) {
  Bignum number(BN_new());
  require(number && BN_set_word(number.get(), value));
  return number;
}

static Bignum from_hex(const char* digits) {
  BIGNUM* number = nullptr;
  require(BN_hex2bn(&number, digits));
  return Bignum(number);
}

static Bignum from_device(const Number& number) {
  Bignum result(
      BN_lebin2bn(reinterpret_cast<const unsigned char*>(number.limb), sizeof number.limb, nullptr));
  require(result != nullptr);
  return result;
}

static Number to_device(const Bignum& number) {
  Number result;
  require(BN_bn2lebinpad(number.get(), reinterpret_cast<unsigned char*>(result.limb), sizeof result.limb) >
          0);
  return result;
}

int main(int argc, char** argv) {
  long size = 16;
  parse_options(argc, argv, "Sums encrypted numbers of two parties (Paillier, 2048-bit modulus).",
                {{"--size", "numbers per party", &size, 1, 1 << 20}});
  const int count = static_cast<int>(size);

  const std::unique_ptr<BN_CTX, BignumFree> context(BN_CTX_new());
  BN_CTX* ctx = context.get();
  const Bignum p = from_hex(
      "CF61A95944B5FC276401743700C4EB1B2D70664B12490691869550EEFD24373D"
      "14637C2C77216EEB23D429FDABBF6ED480BAA2A8EE2E1655A0D610297A0FBF75");
  const Bignum q = from_hex(
      "F1E876C262EF6A268652F64858CE339ED0B92503339790B66ABE58D4DC0BEE3B"
      "40AC6DDA80EF1EE24A6A20EBF44E3C5F88CA51FEF56ACDD26E375B0B949CB195");
  Bignum n = bignum(), n_squared = bignum(), lambda = bignum(), mu = bignum(), one = bignum(1),
         scratch = bignum();
  require(BN_mul(n.get(), p.get(), q.get(), ctx) && BN_sqr(n_squared.get(), n.get(), ctx));
  // lambda = (p - 1)(q - 1) can be used in place of the least common multiple; mu = 1 / lambda mod n.
  require(BN_sub(p.get(), p.get(), one.get()) && BN_sub(q.get(), q.get(), one.get()) &&
          BN_mul(lambda.get(), p.get(), q.get(), ctx) &&
          BN_mod_inverse(mu.get(), lambda.get(), n.get(), ctx));

  PublicKey public_key;
  public_key.n = to_device(n);
  public_key.n_squared = to_device(n_squared);
  require(BN_lshift(scratch.get(), one.get(), 32 * kLimbs) &&
          BN_mod(scratch.get(), scratch.get(), n_squared.get(), ctx));
  public_key.montgomery_one = to_device(scratch);
  require(BN_mod_sqr(scratch.get(), scratch.get(), n_squared.get(), ctx));
  public_key.montgomery_square = to_device(scratch);
  uint32_t inverse = 1;  // Newton's iteration doubles the number of correct bits: 1, 2, 4, ... 32
  for (int i = 0; i < 5; ++i) inverse *= 2 - public_key.n_squared.limb[0] * inverse;
  public_key.negated_inverse = 0 - inverse;
  const Exponent exponent_n = {public_key.n, BN_num_bits(n.get())};
  const Exponent exponent_lambda = {to_device(lambda), BN_num_bits(lambda.get())};

  // The first half of the messages belongs to one party, the second half to the other.
  std::vector<uint64_t> messages(2 * count);
  std::vector<Number> randoms(2 * count), ciphertexts(2 * count), sums(count), decrypted(count);
  uint64_t random = 88172645463325252u;
  const auto next_random = [&random] {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return random;
  };
  for (uint64_t& message : messages) message = next_random() >> 1;  // 63 bits: the sum of two fits into 64
  for (Number& number : randoms)
    for (int j = 0; j < kLimbs; ++j)
      number.limb[j] = j < kLimbs / 2 - 1 ? static_cast<uint32_t>(next_random()) : 0;

  print_device();
  Stopwatch watch;
  uint64_t* device_messages;
  Number *device_numbers, *device_sums;
  CUDA_CHECK(cudaMalloc(&device_messages, messages.size() * sizeof(uint64_t)));
  CUDA_CHECK(cudaMalloc(&device_numbers, randoms.size() * sizeof(Number)));
  CUDA_CHECK(cudaMalloc(&device_sums, count * sizeof(Number)));
  CUDA_CHECK(cudaMemcpyToSymbol(key, &public_key, sizeof key));
  CUDA_CHECK(cudaMemcpy(device_messages, messages.data(), messages.size() * sizeof(uint64_t),
                        cudaMemcpyHostToDevice));
  CUDA_CHECK(
      cudaMemcpy(device_numbers, randoms.data(), randoms.size() * sizeof(Number), cudaMemcpyHostToDevice));

  const int blocks = (count + kThreads - 1) / kThreads,
            blocks_of_both = (2 * count + kThreads - 1) / kThreads;
  encrypt<<<blocks_of_both, kThreads>>>(device_messages, device_numbers, exponent_n, device_numbers,
                                        2 * count);
  CUDA_CHECK(cudaMemcpy(ciphertexts.data(), device_numbers, ciphertexts.size() * sizeof(Number),
                        cudaMemcpyDeviceToHost));
  add_encrypted<<<blocks, kThreads>>>(device_numbers, device_numbers + count, device_sums, count);
  CUDA_CHECK(cudaMemcpy(sums.data(), device_sums, count * sizeof(Number), cudaMemcpyDeviceToHost));
  decrypt<<<blocks, kThreads>>>(device_sums, exponent_lambda, device_sums, count);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaMemcpy(decrypted.data(), device_sums, count * sizeof(Number), cudaMemcpyDeviceToHost));
  for (void* memory : {static_cast<void*>(device_messages), static_cast<void*>(device_numbers),
                       static_cast<void*>(device_sums)})
    CUDA_CHECK(cudaFree(memory));
  const double milliseconds = watch.milliseconds();

  // Compare every ciphertext with OpenSSL's, then every decrypted sum with the sum of the plaintexts.
  bool passed = true;
  for (int i = 0; i < 2 * count; ++i) {
    const Bignum base = from_device(randoms[i]);
    Bignum expected = bignum(), plain = bignum(messages[i]);
    require(BN_mod_exp(expected.get(), base.get(), n.get(), n_squared.get(), ctx) &&
            BN_mul(plain.get(), plain.get(), n.get(), ctx) && BN_add_word(plain.get(), 1) &&
            BN_mod_mul(expected.get(), expected.get(), plain.get(), n_squared.get(), ctx));
    passed &= BN_cmp(expected.get(), from_device(ciphertexts[i]).get()) == 0;
  }
  for (int i = 0; i < count; ++i) {
    Bignum message = from_device(decrypted[i]);
    require(BN_sub_word(message.get(), 1) && BN_div(message.get(), nullptr, message.get(), n.get(), ctx) &&
            BN_mod_mul(message.get(), message.get(), mu.get(), n.get(), ctx));
    passed &= BN_is_word(message.get(), messages[i] + messages[i + count]);
  }
  std::printf("result   %d encrypted, %d added, %d decrypted; checksum of the sums %016llx\n", 2 * count,
              count, count,
              static_cast<unsigned long long>(checksum(sums.data(), sums.size() * sizeof(Number))));
  return finish(passed, milliseconds);
}
