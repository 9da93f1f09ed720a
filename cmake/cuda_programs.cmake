# CUDA programs, built by nvcc as a user would build them: with custom commands and no special flags.
# (CMake's CUDA language adds flags of its own.)
#
#   cuda_program(name SOURCES a.cu b.cc ... [VARIANT static|shared|rdc|ptds|driver ...] [LIBRARIES crypto ...]
#                [PTX kernels.cu ...] [ARCH 90] [LABELS ...])
#     static  nvcc's default: the CUDA runtime linked in statically     shared  -cudart shared
#     rdc     -rdc=true: device code of several files, linked by nvcc   ptds    -default-stream per-thread
#     driver  no CUDA runtime, -lcuda
#   Builds ${CMAKE_CURRENT_BINARY_DIR}/name and the target cuda-name. A PTX source becomes text in the program:
#   kernels.cu is `extern const char kernels_ptx[]`. LABELS adds a ctest entry that runs it without arguments.
#   ARCH: only PTX for this architecture, instead of nvcc's default of PTX and machine code.
#
# GPUPOOL_NVCC_RELEASE: the toolkit's version, for example 12.4.
#
# GPUPOOL_CUDA_PROGRAMS_FROM: another build folder whose programs are linked to instead of being built again
# (their contents do not depend on the preset).
include_guard(GLOBAL)
set(GPUPOOL_CUDA_PROGRAMS_FROM "" CACHE PATH "Build folder to take CUDA programs from, instead of building them")

# GPUPOOL_HAVE_NVCC, GPUPOOL_NVCC: the compile command, with a host compiler that this nvcc accepts.
function(_find_working_nvcc)
  if(NOT NVCC)
    message(WARNING "nvcc was not found on PATH, in CUDA_HOME or in /usr/local/cuda: the CUDA examples and the tests "
                    "that need them are left out. scripts/install-dependencies.sh installs it.")
    set(GPUPOOL_HAVE_NVCC OFF CACHE INTERNAL "")
    return()
  endif()
  if(GPUPOOL_NVCC_CHECKED STREQUAL NVCC)
    return()
  endif()
  set(probe ${CMAKE_BINARY_DIR}/CMakeFiles/nvcc_probe.cu)
  file(WRITE ${probe} "#include <string>\n#include <vector>\n#include <thread>\n__global__ void kernel() {}\n"
                      "int main() { kernel<<<1, 1>>>(); return std::string().size(); }\n")
  set(compilers "")
  foreach(version 15 14 13 12 11 10 9)
    find_program(GPUPOOL_GXX_${version} g++-${version})
    mark_as_advanced(GPUPOOL_GXX_${version})
    if(GPUPOOL_GXX_${version})
      list(APPEND compilers "-ccbin=${GPUPOOL_GXX_${version}}")
    endif()
  endforeach()
  # Tries the default compiler, then every installed g++, newest first, then the default with nvcc's version check disabled.
  foreach(flag "" ${compilers} "-allow-unsupported-compiler")
    execute_process(COMMAND ${NVCC} ${flag} -c ${probe} -o ${probe}.o
                    RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE log)
    if(status EQUAL 0)
      set(GPUPOOL_NVCC ${NVCC} ${flag} CACHE INTERNAL "")
      set(GPUPOOL_NVCC_CHECKED ${NVCC} CACHE INTERNAL "")
      set(GPUPOOL_HAVE_NVCC ON CACHE INTERNAL "")
      message(STATUS "CUDA programs: ${NVCC} ${flag}")
      return()
    endif()
  endforeach()
  set(GPUPOOL_HAVE_NVCC OFF CACHE INTERNAL "")
  message(WARNING "${NVCC} accepts none of the installed host compilers: the CUDA examples and the tests that need "
                  "them are left out. Installing an older g++ helps. Output of the last attempt:\n${log}")
endfunction()
_find_working_nvcc()
if(GPUPOOL_HAVE_NVCC)
  execute_process(COMMAND ${NVCC} --version OUTPUT_VARIABLE _nvcc_version)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" _nvcc_version "${_nvcc_version}")
  set(GPUPOOL_NVCC_RELEASE ${CMAKE_MATCH_1} CACHE INTERNAL "")
endif()

# One object file for each source and set of flags, shared by all programs of the folder.
function(_cuda_object object source key)
  get_filename_component(source ${source} ABSOLUTE)
  file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${source})
  if(name MATCHES "^\\.\\.")  # generated in the build folder
    get_filename_component(name ${source} NAME)
  endif()
  string(REPLACE "/" "_" name "${name}")
  set(output ${CMAKE_CURRENT_BINARY_DIR}/objects/${name}${key}.o)
  set(${object} ${output} PARENT_SCOPE)
  get_property(made DIRECTORY PROPERTY _cuda_objects)
  if(output IN_LIST made)
    return()
  endif()
  set_property(DIRECTORY APPEND PROPERTY _cuda_objects ${output})
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${GPUPOOL_NVCC} ${ARGN} -MD -MF ${output}.d -c ${source} -o ${output}
    DEPENDS ${source} DEPFILE ${output}.d VERBATIM
    COMMENT "nvcc ${name}${key}")
endfunction()

# kernels.cu -> kernels.ptx -> kernels_ptx.cc
function(_cuda_ptx_source generated source)
  get_filename_component(source ${source} ABSOLUTE)
  get_filename_component(name ${source} NAME_WE)
  set(base ${CMAKE_CURRENT_BINARY_DIR}/objects/${name})
  set(${generated} ${base}_ptx.cc PARENT_SCOPE)
  add_custom_command(OUTPUT ${base}_ptx.cc
    COMMAND ${GPUPOOL_NVCC} -ptx ${source} -o ${base}.ptx
    COMMAND ${CMAKE_COMMAND} -DINPUT=${base}.ptx -DOUTPUT=${base}_ptx.cc -DSYMBOL=${name}_ptx
            -P ${CMAKE_SOURCE_DIR}/cmake/embed_text.cmake
    DEPENDS ${source} ${CMAKE_SOURCE_DIR}/cmake/embed_text.cmake VERBATIM
    COMMENT "nvcc -ptx ${name}.cu")
endfunction()

function(cuda_program name)
  cmake_parse_arguments(P "" "ARCH" "SOURCES;VARIANT;LIBRARIES;PTX;LABELS" ${ARGN})
  set(program ${CMAKE_CURRENT_BINARY_DIR}/${name})

  if(GPUPOOL_CUDA_PROGRAMS_FROM)
    file(RELATIVE_PATH path ${CMAKE_BINARY_DIR} ${program})
    get_filename_component(from ${GPUPOOL_CUDA_PROGRAMS_FROM} ABSOLUTE BASE_DIR ${CMAKE_SOURCE_DIR})
    add_custom_command(OUTPUT ${program} COMMAND ${CMAKE_COMMAND} -E create_symlink ${from}/${path} ${program}
                       DEPENDS ${from}/${path} VERBATIM COMMENT "linking to ${path}")
  elseif(GPUPOOL_HAVE_NVCC)
    set(compile_flags "")
    set(link_flags "")
    set(key "")
    if(P_ARCH)
      list(APPEND compile_flags -gencode arch=compute_${P_ARCH},code=compute_${P_ARCH})
      list(APPEND link_flags -gencode arch=compute_${P_ARCH},code=compute_${P_ARCH})
      set(key ".sm_${P_ARCH}")
    endif()
    foreach(variant ${P_VARIANT})
      if(variant STREQUAL "shared")
        list(APPEND link_flags -cudart shared)
      elseif(variant STREQUAL "rdc")
        list(APPEND compile_flags -rdc=true)
        list(APPEND link_flags -rdc=true)
      elseif(variant STREQUAL "ptds")
        list(APPEND compile_flags -default-stream per-thread)
      elseif(variant STREQUAL "driver")
        list(APPEND link_flags -cudart none -lcuda)
      elseif(NOT variant STREQUAL "static")
        message(FATAL_ERROR "cuda_program(${name}): unknown VARIANT ${variant}")
      endif()
      if(variant MATCHES "rdc|ptds")
        string(APPEND key ".${variant}")
      endif()
    endforeach()
    foreach(source ${P_PTX})
      _cuda_ptx_source(generated ${source})
      list(APPEND P_SOURCES ${generated})
    endforeach()
    set(objects "")
    foreach(source ${P_SOURCES})
      _cuda_object(object ${source} "${key}" ${compile_flags})
      list(APPEND objects ${object})
    endforeach()
    list(TRANSFORM P_LIBRARIES PREPEND "-l")
    add_custom_command(OUTPUT ${program}
      COMMAND ${GPUPOOL_NVCC} ${objects} -o ${program} ${link_flags} ${P_LIBRARIES}
      DEPENDS ${objects} VERBATIM COMMENT "nvcc link ${name}")
  else()
    return()
  endif()
  add_custom_target(cuda-${name} ALL DEPENDS ${program})
  if(P_LABELS)
    add_test(NAME ${name} COMMAND ${program})
    set_tests_properties(${name} PROPERTIES LABELS "${P_LABELS}")
  endif()
endfunction()
