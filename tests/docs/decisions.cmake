# Fails if a decision record in docs/adr/ does not have the records' common form (ADR 0001), is missing in the table of
# docs/README.md, or supersedes a record that does not say so, or the reverse.
#
#     cmake -D SOURCE=<repository> -P tests/docs/decisions.cmake
cmake_minimum_required(VERSION 3.22)

set(faults "")
set(supersedes "")     # "NEW>OLD", by the status of the new record
set(superseded_by "")  # the same, by the status of the old one
set(expected 0)
set(sections "## Context ## Decision ## Consequences" "## Context ## Decision ## Alternatives ## Consequences")
file(READ "${SOURCE}/docs/README.md" index)
string(REGEX REPLACE "[][;]" "|" index "${index}")  # as in the records below

file(GLOB records RELATIVE "${SOURCE}/docs/adr" "${SOURCE}/docs/adr/*.md")
foreach(record IN LISTS records)
  math(EXPR expected "${expected} + 1")
  string(REGEX MATCH "^[0-9][0-9][0-9][0-9]" number "${record}")
  string(REGEX REPLACE "^0+" "" value "${number}")
  if(NOT value EQUAL expected)
    string(APPEND faults "\n  ${record}: the next record must have the number ${expected}")
    set(expected ${value})
  endif()

  file(READ "${SOURCE}/docs/adr/${record}" content)
  string(REGEX REPLACE "[][]" " " content "${content}")  # brackets join list elements
  string(REPLACE ";" "|" content "${content}")           # semicolons separate them, and the clauses of a status
  if(NOT content MATCHES "^# ${number}: ([^\n]+)\n\nStatus: (accepted|superseded by )([^\n]*(\n[^\n]+)*)\n\n## Context\n")
    string(APPEND faults "\n  ${record}: must begin with '# ${number}: TITLE', 'Status: accepted' or 'Status: superseded by', '## Context'")
    continue()
  endif()
  set(title "${CMAKE_MATCH_1}")
  set(status "${CMAKE_MATCH_2}${CMAKE_MATCH_3}")
  string(FIND "${index}" "| |${number}|(adr/${record}) | ${title} |" at)
  if(at EQUAL -1)
    string(APPEND faults "\n  ${record}: docs/README.md does not list it as '${title}'")
  endif()

  string(REGEX MATCHALL "\n## [^\n]+" headings "${content}")
  string(REGEX REPLACE ";?\n" " " headings "${headings}")
  string(STRIP "${headings}" headings)
  if(NOT headings IN_LIST sections)
    string(APPEND faults "\n  ${record}: has the sections '${headings}', must have Context, Decision, Alternatives (optional), Consequences")
  endif()

  string(REPLACE "|" ";" clauses "${status}")
  foreach(clause IN LISTS clauses)
    string(REGEX MATCHALL "\\([0-9][0-9][0-9][0-9]-" others "${clause}")
    foreach(other IN LISTS others)
      string(REGEX REPLACE "[(-]" "" other "${other}")
      if(clause MATCHES "supersedes ")
        list(APPEND supersedes "${number}>${other}")
      elseif(clause MATCHES "superseded ")
        list(APPEND superseded_by "${other}>${number}")
      endif()
    endforeach()
  endforeach()
endforeach()

foreach(pair IN LISTS supersedes superseded_by)
  if(NOT pair IN_LIST supersedes OR NOT pair IN_LIST superseded_by)
    string(REPLACE ">" " supersedes " pair "${pair}")
    string(APPEND faults "\n  ${pair}: only one of the two records says so in its status")
  endif()
endforeach()

if(expected EQUAL 0)
  string(APPEND faults "\n  found no records")
endif()
if(faults)
  message(FATAL_ERROR "The decision records have faults:${faults}")
endif()
list(LENGTH supersedes relations)
message(STATUS "${expected} records in one form, ${relations} relations that both records state")
