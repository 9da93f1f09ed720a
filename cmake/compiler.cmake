# Warnings, hardening, sanitizers, compiler cache and linker for every target of the tree.
add_compile_options(-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports false overflows in libstdc++'s inlined code, depending on the optimization level.
  add_compile_options(-Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict -Wno-maybe-uninitialized)
  # GCC collects its garbage when its heap has grown by a share; with more memory before the first time it compiles 5 to 12 %
  # faster. The unit is KiB.
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:--param=ggc-min-heapsize=524288>)
endif()
if(GPUPOOL_WERROR)
  add_compile_options(-Werror)
endif()
# __FILE__ is the path in the tree: the same sources make the same programs in any folder (tests/packages). The last option applies first.
foreach(folder ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fmacro-prefix-map=${folder}/=>)
endforeach()

# tests/hardening checks the effects of these options in the built files. Sanitizers find more and conflict with some of
# them.
if(NOT GPUPOOL_SANITIZE)
  add_compile_options(-fstack-protector-strong -fstack-clash-protection)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    add_compile_options(-fcf-protection)
  endif()
  foreach(type RELEASE RELWITHDEBINFO)  # _FORTIFY_SOURCE needs optimization
    string(APPEND CMAKE_C_FLAGS_${type} " -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
    string(APPEND CMAKE_CXX_FLAGS_${type} " -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
  endforeach()
  add_link_options(-Wl,-z,relro,-z,now,-z,noexecstack)
endif()
include(CheckPIESupported)
check_pie_supported()

if(GPUPOOL_SANITIZE)
  add_compile_options(-fsanitize=${GPUPOOL_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${GPUPOOL_SANITIZE})
  if(GPUPOOL_SANITIZE MATCHES "thread")
    add_compile_definitions(GPUPOOL_TSAN=1)
    # Asio and std::atomic_thread_fence: TSan does not model fences.
    add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
  if(GPUPOOL_SANITIZE MATCHES "address")
    add_compile_definitions(GPUPOOL_ASAN=1)
    add_compile_options(-fno-sanitize=vptr)  # vptr checks need RTTI, and LLVM is built without it
    # A program may pass any number for an enum of cuda.h; the device library checks it.
    add_compile_options(-fno-sanitize=enum)
  endif()
endif()

# clang's source-based coverage in continuous mode (%c): the counters are in files that all processes of a program map, so
# nothing is lost if a process is killed, calls _exit(), or is confined like a worker. %m: one file for each program or library.
if(GPUPOOL_COVERAGE)
  set(gpupool_coverage -fprofile-instr-generate=${CMAKE_BINARY_DIR}/profiles/%m%c.profraw -fcoverage-mapping)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${gpupool_coverage};SHELL:-mllvm -runtime-counter-relocation>")
  add_link_options(${gpupool_coverage})
endif()
# gpupool_leave_out_of_coverage(): does not count the lines of this folder and those below it.
macro(gpupool_leave_out_of_coverage)
  if(GPUPOOL_COVERAGE)
    add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fno-profile-instr-generate;-fno-coverage-mapping>")
  endif()
endmacro()

if(GPUPOOL_LIBFUZZER)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(GPUPOOL_LIBFUZZER OR GPUPOOL_COVERAGE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fconstexpr-steps=100000000>)  # the tables of protocol/calls
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# gpupool_compile_quickly(target ...): compiles with -O1, or with -O0 if there are sanitizers; for programs and libraries
# that are not on the path of CUDA calls. The optimizer takes half of the compile time of code that uses CLI11, gRPC or JSON.
function(gpupool_compile_quickly)
  foreach(target ${ARGN})
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
    if(GPUPOOL_SANITIZE AND NOT GPUPOOL_LIBFUZZER)
      target_compile_options(${target} PRIVATE -O0)
    endif()
  endforeach()
endfunction()

# Every include names the full path from the root of the tree.
include_directories(${CMAKE_SOURCE_DIR})
