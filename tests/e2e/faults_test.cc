// Kernels and images that fail in one client: that client gets CUDA's error code, and other clients are not
// affected.
#include <signal.h>

#include "tests/e2e/pool.h"
#include "tests/support/catch.h"

using namespace gpupool::testing;

TEST_CASE("a fault in one client does not touch another") {
  Pool pool;
  Process bystander({driver_app(), "bystander", "400"}, pool.through());
  REQUIRE(bystander.await_output("working"));
  const auto app = [&](const std::string& scenario) {
    return run_patiently({driver_app(), scenario}, pool.through()).output;
  };
  CHECK(app("illegal_address")
            .find("store at 0x1000: CUDA_ERROR_ILLEGAL_ADDRESS, then CUDA_ERROR_ILLEGAL_ADDRESS "
                  "CUDA_ERROR_ILLEGAL_ADDRESS CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
  const std::string trap = app("trap");
  CHECK((trap.find("trap: CUDA_ERROR_LAUNCH_FAILED") != std::string::npos ||
         trap.find("trap: CUDA_ERROR_ILLEGAL_INSTRUCTION") != std::string::npos));
  const std::string assertion = app("assertion");
  CHECK(assertion.find("assert: CUDA_ERROR_ASSERT, then CUDA_ERROR_ASSERT") != std::string::npos);
  CHECK(assertion.find("Assertion `value == 1` failed") != std::string::npos);
  CHECK(bystander.wait(kLongPatience) == 0);
  CHECK(lines_with(bystander.output(), "gpupool:").empty());
  CHECK(pool.poold().log().find(" error ") == std::string::npos);
}

TEST_CASE("launches that block tell of their kernel's fault") {
  Pool pool;
  const Environment blocking{{"CUDA_LAUNCH_BLOCKING", "1"}};
  for (const Environment& environment : {pool.directly(blocking), pool.through(blocking)}) {
    const Finished app = run_patiently({driver_app(), "fault_at_the_launch"}, environment);
    INFO(app.output);
    CHECK(app.status == 0);
  }
}

TEST_CASE("a destroyed texture serves earlier kernels and faults in later ones") {
  Pool pool;
  for (const Environment& environment : {pool.directly(), pool.through()}) {
    for (const char* const scenario : {"destroyed_texture", "texture_destroyed_behind_a_host_function"}) {
      const Finished app = run_patiently({driver_app(), scenario}, environment);
      INFO(scenario << '\n' << app.output);
      CHECK(app.status == 0);
    }
  }
}

TEST_CASE("images that cannot run") {
  Pool pool;
  for (const Environment& environment : {pool.directly(), pool.through()}) {
    const Finished app = run_patiently({driver_app(), "images_that_cannot_run"}, environment);
    INFO(app.output);
    CHECK(app.status == 0);
    CHECK(app.output.find("no PTX at all: CUDA_ERROR_INVALID_") != std::string::npos);
    CHECK(app.output.find("version: CUDA_ERROR_UNSUPPORTED_PTX_VERSION") != std::string::npos);
    CHECK(app.output.find("instruction: CUDA_ERROR_INVALID_PTX") != std::string::npos);
    CHECK(app.output.find("unfinished: CUDA_ERROR_INVALID_PTX") != std::string::npos);
    // The message names the instruction. It is printed once per load: by softgpu, unless the program passed a
    // log buffer, or by the client library.
    const bool direct = environment == pool.directly();
    CHECK(lines_with(app.output, "frobnicate").size() == (direct ? 1 : 2));
    CHECK(lines_with(app.output, "(kernel k, line 6)").size() == (direct ? 1 : 2));
    CHECK(lines_with(app.output, "99.0").size() == 1);
    CHECK(lines_with(app.output, direct ? "gpupool: " : "softgpu: ").empty());
  }
}

TEST_CASE("an image without code for the device is refused with one line that says what it holds") {
  Pool pool;
  for (const Environment& environment : {pool.directly(), pool.through()}) {
    const Finished app = run_patiently({driver_app(), "library_without_code"}, environment);
    INFO(app.output);
    CHECK(app.status == 0);
    const auto said = lines_with(
        app.output, "the image holds machine code for sm_70 and no PTX; the device, of compute capability ");
    CHECK(said.size() == 2);  // one for the module, one for the library at its first use
    for (const auto& line : said)
      CHECK(line.find("compile with -gencode arch=compute_") != std::string::npos);
  }
}

// Disables the sanitizers' signal handlers, so that these programs die of the signals as usual.
static const Environment kPlainDeaths{{"ASAN_OPTIONS", "handle_segv=0:handle_sigbus=0:detect_leaks=0"},
                                      {"TSAN_OPTIONS", "handle_segv=0:handle_sigbus=0:atexit_sleep_ms=0"}};

TEST_CASE("managed memory of a lost server") {
  Pool pool;
  Process app({driver_app(), "managed_memory_of_a_lost_server"}, pool.through(kPlainDeaths));
  REQUIRE(app.await_output("ready"));
  ::kill(pool.worker_of(app), SIGKILL);
  ::kill(app.pid(), SIGUSR1);
  const int status = app.wait(kLongPatience);
  INFO(app.output());
  CHECK(status == 128 + SIGBUS);
  CHECK(!lines_with(app.output(),
                    "gpupool: managed memory is lost: it was on a server whose connection is lost")
             .empty());
}

// With a remote device, a forked child cannot use managed memory, as with CUDA.
TEST_CASE("managed memory and fork") {
  Pool pool;
  const Finished app = run_patiently({driver_app(), "managed_memory_and_fork"}, pool.through(kPlainDeaths));
  INFO(app.output);
  CHECK(app.status == 0);
}
