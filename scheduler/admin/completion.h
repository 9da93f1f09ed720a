// Completion of pool-admin's words in a shell: `pool-admin completion bash` prints a script that asks pool-admin itself what may
// follow, by starting it as `pool-admin --complete WORD...` with the words so far, the last one unfinished.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace gpupool::admin {

constexpr const char* kCompleteOption = "--complete";

// bash, zsh or fish. Empty: no such shell.
std::string completion_script(const std::string& shell);
// Commands and options that may stand in the place of the last word, one each line.
std::string completions(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace gpupool::admin
