# python_environment(label seconds): adds the test LABEL.environment, which installs the packages of the calling folder's
# requirements.txt into a virtual environment in its build folder, within so many seconds. Sets `environment`, the environment's
# folder, for the caller. Tests that use it have FIXTURES_REQUIRED LABEL_environment.
function(python_environment label seconds)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/environment)
  add_test(NAME ${label}.environment
    COMMAND ${CMAKE_SOURCE_DIR}/tests/support/make_python.sh ${folder} -r ${CMAKE_CURRENT_SOURCE_DIR}/requirements.txt)
  math(EXPR timeout "${seconds} + 100")  # the script ends earlier, and says why
  set_tests_properties(${label}.environment PROPERTIES LABELS ${label} TIMEOUT ${timeout} ENVIRONMENT PIP_SECONDS=${seconds}
    SKIP_RETURN_CODE 77 FIXTURES_SETUP ${label}_environment)
  set(environment ${folder} PARENT_SCOPE)
endfunction()
