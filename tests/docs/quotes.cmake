# Fails if README.md, CONTRIBUTING.md or a page of docs/ quotes a row that is not in the driver API's tables (ignoring
# white space). The paths that pages name are checked by scripts/checks/links.py.
#
#     cmake -D SOURCE=<repository> -P tests/docs/quotes.cmake
cmake_minimum_required(VERSION 3.22)

# All tables as one text with single spaces, because a page may break a row into lines.
file(GLOB_RECURSE tables "${SOURCE}/protocol/*.def")
set(rows "")
foreach(table IN LISTS tables)
  file(READ "${table}" content)
  string(REGEX REPLACE "[ \n]+" " " content "${content}")
  string(APPEND rows "${content}")
endforeach()

file(GLOB_RECURSE pages "${SOURCE}/docs/*.md")
set(faults "")
set(quotes 0)
foreach(page IN LISTS pages ITEMS "${SOURCE}/README.md" "${SOURCE}/CONTRIBUTING.md")
  file(READ "${page}" content)
  file(RELATIVE_PATH name "${SOURCE}" "${page}")
  string(REGEX REPLACE "[][;]" " " content "${content}")  # these characters separate or join list elements

  string(REGEX MATCHALL "CUDA_(CALL|OLDER|ROW_COPY|ANSWER|CHECK|GRAPH_NODE)[A-Z_]*\\((0x|cu)[^)]*\\)" quoted "${content}")
  foreach(row IN LISTS quoted)
    math(EXPR quotes "${quotes} + 1")
    string(REGEX REPLACE "[ \n]+" " " row "${row}")
    string(FIND "${rows}" "${row}" at)
    if(at EQUAL -1)
      string(APPEND faults "\n  ${name}: quotes ${row}, which is not a row in protocol/")
    endif()
  endforeach()
endforeach()

if(quotes EQUAL 0)
  string(APPEND faults "\n  no page quotes a row: the test probably searches for the wrong text")
endif()
if(faults)
  message(FATAL_ERROR "The documentation disagrees with the tree:${faults}")
endif()
message(STATUS "${quotes} quoted rows exist")
