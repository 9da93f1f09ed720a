// Shell completion for pool-admin. The script printed by `pool-admin completion bash` gets the candidates
// from
// `pool-admin --complete WORD...` with the words typed so far; the last may be incomplete. Pure functions.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace gpupool::admin {

constexpr const char* kCompleteOption = "--complete";

// `shell`: bash, zsh or fish. Returns "" for another shell.
std::string completion_script(const std::string& shell);
// Returns the commands and options that complete the last word, one per line.
std::string completions(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace gpupool::admin
