# Fails if a row with a wrong role compiles, or fails to compile for another reason than the one named in
# wrong_roles.cc beside its number ("ROW == n  // text of the error").
#
#     cmake -D COMPILER=<C++ compiler> -D SOURCE=<repository> -D INCLUDES=<folder>|<folder> -P wrong_roles.cmake
cmake_minimum_required(VERSION 3.22)

string(REPLACE "|" ";-idirafter;" includes "-idirafter;${INCLUDES}")
set(file "${CMAKE_CURRENT_LIST_DIR}/wrong_roles.cc")

# Compiles wrong_roles.cc with row ROW. Sets `status` and `errors`.
function(compile row)
  execute_process(COMMAND "${COMPILER}" -std=c++20 -fsyntax-only "-I${SOURCE}" ${includes} "-DROW=${row}" "${file}"
    RESULT_VARIABLE status OUTPUT_VARIABLE errors ERROR_VARIABLE errors)
  set(status "${status}" PARENT_SCOPE)
  set(errors "${errors}" PARENT_SCOPE)
endfunction()

compile(0)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "The correct row of ${file} does not compile:\n${errors}")
endif()

file(STRINGS "${file}" rows REGEX "ROW == [1-9]")
set(faults "")
foreach(line IN LISTS rows)
  string(REGEX REPLACE ".*ROW == ([0-9]+) +// (.*)" "\\1" row "${line}")
  set(text "${CMAKE_MATCH_2}")
  compile("${row}")
  if(status EQUAL 0)
    string(APPEND faults "\n  row ${row} compiles; expected: ${text}")
  else()
    string(FIND "${errors}" "${text}" at)
    if(text STREQUAL "" OR at EQUAL -1)
      string(APPEND faults "\n  row ${row}: expected \"${text}\" in:\n${errors}")
    endif()
  endif()
endforeach()

if(NOT rows)
  string(APPEND faults "\n  ${file} has no wrong rows: the test probably searches for the wrong text")
endif()
if(faults)
  message(FATAL_ERROR "Wrong rows:${faults}")
endif()
list(LENGTH rows count)
message(STATUS "${count} wrong rows are rejected")
