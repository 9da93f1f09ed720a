# All external packages; they come from Debian or Ubuntu. scripts/install-dependencies.sh installs them.
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(CURL REQUIRED)  # libcurl4-openssl-dev: HTTP of client/kubernetes/

# CUDA: only its headers are needed to build gpupool itself; nvcc builds the examples.
find_path(CUDA_INCLUDE_DIR cuda.h
  HINTS ${CUDA_HOME} $ENV{CUDA_HOME} ENV CUDA_PATH PATH_SUFFIXES include
  PATHS /usr/local/cuda /usr/include /usr/lib/cuda REQUIRED)
find_program(NVCC nvcc HINTS ${CUDA_HOME} $ENV{CUDA_HOME} ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
add_library(cuda_headers INTERFACE)
# The client exports the functions that its cuda.h declares. With a toolkit older than CUDA 13, the build therefore uses
# cuda.h of 13.0 from NVIDIA's Python package, so that programs of CUDA 13 find their functions. nvcc uses its own cuda.h.
set(GPUPOOL_CUDA_HEADERS "" CACHE PATH "Folder of the cuda.h to build with, in place of the toolkit's")
set(_newest_headers 13.0.88)
file(STRINGS ${CUDA_INCLUDE_DIR}/cuda.h _cuda_version REGEX "^#define CUDA_VERSION [0-9]+")
string(REGEX REPLACE "[^0-9]" "" _cuda_version "${_cuda_version}")
if(_cuda_version LESS 13000 AND NOT GPUPOOL_CUDA_HEADERS)
  set(_headers ${CMAKE_SOURCE_DIR}/build/cuda-headers/${_newest_headers})
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/fetch-cuda-headers.sh ${_newest_headers} ${_headers} RESULT_VARIABLE _status)
  if(_status EQUAL 0)
    set(GPUPOOL_CUDA_HEADERS ${_headers}/include)  # not cached: set by every configure run
  else()
    message(WARNING "cuda.h is of version ${_cuda_version}, and cuda.h of CUDA ${_newest_headers} cannot be downloaded: programs built with a "
                    "newer CUDA than this toolkit will not work with the client library of this build")
    set(GPUPOOL_OLD_CUDA_HEADERS ON)
  endif()
endif()
set(CUDA_HEADERS_DIR ${CUDA_INCLUDE_DIR})
if(GPUPOOL_CUDA_HEADERS)
  set(CUDA_HEADERS_DIR ${GPUPOOL_CUDA_HEADERS})
  target_compile_options(cuda_headers INTERFACE "SHELL:-idirafter ${CUDA_INCLUDE_DIR}")  # cudaProfiler.h, which the package lacks
endif()
target_include_directories(cuda_headers SYSTEM INTERFACE ${CUDA_HEADERS_DIR})

# Header-only Asio (Debian: libasio-dev).
find_path(ASIO_INCLUDE_DIR asio.hpp REQUIRED)
add_library(asio INTERFACE)
target_include_directories(asio SYSTEM INTERFACE ${ASIO_INCLUDE_DIR})
# Asio uses std::aligned_alloc or operator new depending on the headers included before it: two files of one program could
# differ, and memory would be freed with the wrong function.
target_compile_definitions(asio INTERFACE ASIO_STANDALONE ASIO_NO_DEPRECATED ASIO_DISABLE_STD_ALIGNED_ALLOC)
target_link_libraries(asio INTERFACE Threads::Threads)

# gRPC (libgrpc++-dev, protobuf-compiler-grpc), prometheus-cpp (prometheus-cpp-dev) and nlohmann's JSON
# (nlohmann-json3-dev): not every release has CMake packages for them.
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
foreach(library grpc++ grpc gpr absl_synchronization absl_time absl_time_zone prometheus-cpp-core)
  find_library(LIBRARY_${library} NAMES ${library} REQUIRED)
endforeach()
add_library(grpc INTERFACE)
target_link_libraries(grpc INTERFACE ${LIBRARY_grpc++} ${LIBRARY_grpc} ${LIBRARY_gpr} ${LIBRARY_absl_synchronization} Threads::Threads)
add_library(absl_time INTERFACE)  # time zones of pool-scheduler's configuration; libabsl-dev comes with libgrpc++-dev
target_link_libraries(absl_time INTERFACE ${LIBRARY_absl_time} ${LIBRARY_absl_time_zone})
# gRPC uses the system's libcrypto and zlib; a program's static copies (CRYPTO_STATIC) must not override them.
target_link_options(grpc INTERFACE -Wl,--exclude-libs,libcrypto.a:libz.a:libzstd.a)
if(GPUPOOL_SANITIZE)
  # An object library, so that a unity build does not merge it with other sources and it is always linked.
  add_library(sanitizer_suppressions OBJECT ${CMAKE_SOURCE_DIR}/cmake/sanitizer_suppressions.cc)
  target_sources(grpc INTERFACE $<TARGET_OBJECTS:sanitizer_suppressions>)
endif()
add_library(prometheus INTERFACE)
target_link_libraries(prometheus INTERFACE ${LIBRARY_prometheus-cpp-core})
find_path(NLOHMANN_JSON_INCLUDE_DIR nlohmann/json.hpp REQUIRED)

# SQLite (libsqlite3-dev), the scheduler's store.
find_path(SQLITE_INCLUDE_DIR sqlite3.h REQUIRED)
find_library(LIBRARY_sqlite3 NAMES sqlite3 REQUIRED)

# toml++ (libtomlplusplus-dev): header-only. Without NDEBUG an invalid file (`[[=]]`) fails an assertion just before it would
# be reported as an error.
find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED)
add_library(tomlplusplus INTERFACE)
target_include_directories(tomlplusplus SYSTEM INTERFACE ${TOMLPLUSPLUS_INCLUDE_DIR})
target_compile_options(tomlplusplus INTERFACE "-DTOML_ASSERT(expr)=static_assert(true)")
if(GPUPOOL_SANITIZE MATCHES "undefined")
  target_compile_options(tomlplusplus INTERFACE -fno-sanitize=unreachable)  # its tables of Unicode characters are incomplete
endif()

# protozero (libprotozero-dev): header-only.
find_path(PROTOZERO_INCLUDE_DIR protozero/pbf_reader.hpp REQUIRED)

# lz4 and zstd decode fat binaries. They are linked statically, so that the client library needs no further libraries.
find_path(LZ4_INCLUDE_DIR lz4.h REQUIRED)
find_path(ZSTD_INCLUDE_DIR zstd.h REQUIRED)
find_library(LZ4_STATIC NAMES liblz4.a REQUIRED)
find_library(ZSTD_STATIC NAMES libzstd.a REQUIRED)
# OpenSSL's SHA-256 names module images, also in the client.
find_library(CRYPTO_ARCHIVE NAMES libcrypto.a REQUIRED)
find_library(ZLIB_STATIC NAMES libz.a REQUIRED)
set(CRYPTO_STATIC ${CRYPTO_ARCHIVE} ${ZSTD_STATIC} ${ZLIB_STATIC})  # libcrypto of OpenSSL 3.5 needs both (libcrypto.pc, Libs.private)

# LLVM 15 or newer (opaque pointers), newest first: the code generator of softgpu.
set(GPUPOOL_LLVM_VERSIONS 19 18 17 16 15)
if(NOT LLVM_DIR)
  foreach(version ${GPUPOOL_LLVM_VERSIONS})
    if(EXISTS /usr/lib/llvm-${version}/lib/cmake/llvm/LLVMConfig.cmake)
      set(LLVM_DIR /usr/lib/llvm-${version}/lib/cmake/llvm CACHE PATH "LLVMConfig.cmake's folder")
      break()
    endif()
  endforeach()
endif()
find_package(LLVM REQUIRED CONFIG)
message(STATUS "LLVM ${LLVM_PACKAGE_VERSION}, CUDA headers in ${CUDA_HEADERS_DIR}, nvcc ${NVCC}")
