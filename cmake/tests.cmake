# Catch2, version 3 (Ubuntu 24.04, Debian 13) or 2 (Debian 12); tests include "tests/support/catch.h".
find_package(Catch2 3 QUIET)
if(Catch2_FOUND)
  add_library(test_main ALIAS Catch2::Catch2WithMain)
else()
  find_package(Catch2 2 REQUIRED)
  add_library(test_main STATIC ${CMAKE_SOURCE_DIR}/tests/support/catch_main.cc)
  target_link_libraries(test_main PUBLIC Catch2::Catch2)
endif()

# Tests share the parsed headers of tests/support/precompiled.h.
# Not with ccache, which caches nothing that includes a precompiled header unless it checks less.
if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  add_executable(precompiled_headers ${CMAKE_SOURCE_DIR}/tests/support/precompiled.cc)  # a program, for the code model of programs
  target_link_libraries(precompiled_headers PRIVATE test_main)
  target_precompile_headers(precompiled_headers PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/precompiled.h)
endif()
function(gpupool_use_precompiled_headers target)
  if(TARGET precompiled_headers AND NOT part IN_LIST optimised_parts)
    target_precompile_headers(${target} REUSE_FROM precompiled_headers)
  endif()
endfunction()

# Matches the output of a Catch2 program that skipped all of its test cases (tests/support/skip.h), so that ctest reports
# its entry as skipped. A program that tested anything, or failed, has made assertions.
set(gpupool_all_skipped "SKIPPED: .*assertions: - none -")

# gpupool_compile_together(target ...): compiles the sources of each target as one in the presets that do so with the rest of the tree
# (CMAKE_UNITY_BUILD): most of the time goes into headers and templates that they share. Helpers in their anonymous namespaces must
# have different names.
function(gpupool_compile_together)
  if(gpupool_unity_build)
    set_target_properties(${ARGN} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
  endif()
endfunction()

# docs/security.md names the test files beside its claims: they must exist, and `ctest -L security` runs their programs.
# security_tests_end() checks this after all tests have been added.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/security.md)
file(READ ${CMAKE_SOURCE_DIR}/docs/security.md security_page)
string(REGEX MATCHALL "tests/[a-z0-9_/]+\\.[a-z]+" security_tests "${security_page}")
foreach(file ${security_tests})
  if(NOT EXISTS ${CMAKE_SOURCE_DIR}/${file})
    message(FATAL_ERROR "docs/security.md names ${file}, which does not exist")
  endif()
endforeach()
# security_label(variable source ...): sets the variable to `security` if the page names one of the sources.
function(security_label variable)
  set(${variable} "" PARENT_SCOPE)
  foreach(source ${ARGN})
    get_filename_component(path ${source} ABSOLUTE)
    file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${path})
    if(path IN_LIST security_tests)
      set(${variable} security PARENT_SCOPE)
      set_property(GLOBAL APPEND PROPERTY _security_tests ${path})
    endif()
  endforeach()
endfunction()
function(security_tests_end)
  get_property(labelled GLOBAL PROPERTY _security_tests)
  foreach(file ${security_tests})
    if(NOT file IN_LIST labelled AND (GPUPOOL_FUZZERS OR NOT file MATCHES "^tests/fuzz/"))
      message(FATAL_ERROR "docs/security.md names ${file}, but no test with the label `security` has this source")
    endif()
  endforeach()
endfunction()

# skipped_test(name reason [LABELS ...]): adds an entry for a test that this build cannot run; the summary shows the reason.
function(skipped_test name reason)
  cmake_parse_arguments(T "" "" "LABELS" ${ARGN})
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "SKIPPED: ${reason}")
  set_tests_properties(${name} PROPERTIES LABELS "${T_LABELS}" SKIP_REGULAR_EXPRESSION "SKIPPED: ")
endfunction()

# gpupool_test(name SOURCES a.cc ... LIBRARIES x ... [TIMEOUT s] [LABELS ...]): adds a Catch2 program and its ctest entry.
function(gpupool_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_LIBRARIES} test_main)
  gpupool_use_precompiled_headers(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  security_label(security ${T_SOURCES})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS};${security}"
    SKIP_REGULAR_EXPRESSION "${gpupool_all_skipped}")
endfunction()
