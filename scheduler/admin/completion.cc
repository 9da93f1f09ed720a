#include "scheduler/admin/completion.h"

#include <set>

namespace gpupool::admin {

std::string completion_script(const std::string& shell) {
  const std::string bash =
      "_pool_admin() {\n"
      "  local IFS=$'\\n'\n"
      "  COMPREPLY=($(\"${COMP_WORDS[0]}\" --complete \"${COMP_WORDS[@]:1:COMP_CWORD}\" 2>/dev/null))\n"
      "}\n"
      "complete -o default -F _pool_admin pool-admin\n";
  if (shell == "bash") return bash;
  if (shell == "zsh") return "autoload -U +X bashcompinit && bashcompinit\n" + bash;
  if (shell == "fish")
    return "complete -c pool-admin -a '(set -l words (commandline -opc) (commandline -ct); $words[1] "
           "--complete $words[2..-1])'\n";
  return "";
}

std::string completions(const CLI::App& app, const std::vector<std::string>& words) {
  const std::string last = words.empty() ? "" : words.back();
  const CLI::App* at = &app;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    for (const CLI::App* const command : at->get_subcommands(nullptr)) {
      if (command->get_name() != words[i]) continue;
      at = command;
      break;
    }
  }
  std::set<std::string> all;
  for (const CLI::App* const command : at->get_subcommands(nullptr)) all.insert(command->get_name());
  for (const CLI::App* const level : {&app, at}) {
    for (const CLI::Option* const option : level->get_options()) {
      for (const std::string& name : option->get_lnames()) all.insert("--" + name);
    }
  }
  std::string text;
  for (const std::string& word : all) {
    if (word.starts_with(last) && (last.starts_with("-") || !word.starts_with("-"))) text += word + "\n";
  }
  return text;
}

}  // namespace gpupool::admin
