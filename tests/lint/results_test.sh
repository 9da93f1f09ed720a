#!/usr/bin/env bash
# Usage: results_test.sh SOURCE_FOLDER
# Checks how scripts/test/results.sh counts results and runs failed tests again, with a build folder that has only a list of
# tests. softroce, which is not run again, comes before the failing ones: if it were left out with -E, ctest would number the
# others differently.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$1/scripts/common.sh"
# shellcheck source=scripts/test/results.sh
source "$1/scripts/test/results.sh"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
mkdir -p build/some

# Each test writes its name to `runs`.
cat >build/some/CTestTestfile.cmake <<'END'
add_test(softroce bash -c "echo softroce >>../../runs; true")
add_test(long bash -c "echo long >>../../runs; false")
add_test(steady bash -c "echo steady >>../../runs")
add_test(un.steady bash -c "echo un.steady >>../../runs; test -e ../../second || { touch ../../second; false; }")
add_test(unosteady bash -c "echo unosteady >>../../runs")
add_test(broken bash -c "echo broken >>../../runs; false")
add_test(last bash -c "echo last >>../../runs")
add_test(skipped bash -c "echo SKIPPED: a reason")
set_tests_properties(long PROPERTIES LABELS soak)
set_tests_properties(skipped PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: ")
END

retry=yes
run_tests some -LE '^soak$' >output 2>&1
summary >totals && die "the broken test did not fail the summary"
runs=$(sort runs | uniq -c | awk '{ print $2 ":" $1 }' | paste -sd ' ')
[[ $runs == "broken:2 last:1 softroce:1 steady:1 un.steady:2 unosteady:1" ]] || die "the tests ran: $runs"
grep -qx '5 passed, 1 failed, 1 skipped' totals || die "the summary is: $(cat totals)"
grep -qx ' *build/some: un\.steady' totals || die "un.steady is not named as unsteady: $(cat totals)"
grep -q 'skipped: SKIPPED: a reason' totals || die "the reason of the skipped test is missing: $(cat totals)"

# A softroce entry that failed is not run again here.
sed -i 's/softroce >>..\/..\/runs; true/softroce >>..\/..\/runs; false/; /broken/d' build/some/CTestTestfile.cmake
rm -f runs second
passed=0 failed=0 skipped=0
run_tests some -LE '^soak$' >output 2>&1
[[ $(grep -c softroce runs) == 1 && $failed == 1 ]] || die "softroce ran $(grep -c softroce runs) times, $failed failed"
