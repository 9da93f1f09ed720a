#include "server/softgpu/jit/engine.h"

#include <llvm/Config/llvm-config.h>
#include <llvm/ExecutionEngine/Orc/CompileUtils.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/ExecutionEngine/Orc/RTDyldObjectLinkingLayer.h>
#include <llvm/ExecutionEngine/SectionMemoryManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>

#include <mutex>

#include "server/softgpu/jit/builtins.h"
#include "server/softgpu/jit/codegen.h"
#include "server/softgpu/jit/support.h"

namespace gpupool::softgpu {
namespace {

// Differences between LLVM 15 and newer versions.
#if LLVM_VERSION_MAJOR >= 18
constexpr auto kFastCode = llvm::CodeGenOptLevel::Default;
constexpr auto kQuickCode = llvm::CodeGenOptLevel::None;
#else
constexpr auto kFastCode = llvm::CodeGenOpt::Default;
constexpr auto kQuickCode = llvm::CodeGenOpt::None;
#endif
#if LLVM_VERSION_MAJOR >= 17
llvm::orc::ExecutorSymbolDef symbol_at(void* address) {
  return {llvm::orc::ExecutorAddr::fromPtr(address), llvm::JITSymbolFlags::Exported};
}
#else
llvm::JITEvaluatedSymbol symbol_at(void* address) {
  return llvm::JITEvaluatedSymbol(llvm::pointerToJITTargetAddress(address), llvm::JITSymbolFlags::Exported);
}
#endif
template <typename Entry, typename Address>
Entry entry_at(Address address) {
#if LLVM_VERSION_MAJOR >= 15
  return reinterpret_cast<Entry>(static_cast<uintptr_t>(address.getValue()));
#endif
}

void initialise_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
}

// The default linking layer of LLVM 15 and 16. Newer versions default to JITLink, which looks up its helper
// functions among the process's symbols; LLVM's are not there if the program opened this library with dlopen.
std::unique_ptr<llvm::orc::ObjectLayer> linking_layer(llvm::orc::ExecutionSession& session,
                                                      const llvm::Triple&) {
  return std::make_unique<llvm::orc::RTDyldObjectLinkingLayer>(
      session, [] { return std::make_unique<llvm::SectionMemoryManager>(); });
}

std::string text_of(llvm::Error error) {
  return llvm::toString(std::move(error));
}

}  // namespace

struct Engine::State {
  bool optimise = true;
  std::unique_ptr<llvm::TargetMachine> machine;
  std::unique_ptr<llvm::orc::LLJIT> jit;
  llvm::orc::JITDylib* runtime = nullptr;

  void run_passes(llvm::Module& module) {
    llvm::LoopAnalysisManager loops;
    llvm::FunctionAnalysisManager functions;
    llvm::CGSCCAnalysisManager calls;
    llvm::ModuleAnalysisManager modules;
    llvm::PipelineTuningOptions tuning;
    llvm::PassBuilder builder(machine.get(), tuning);
    builder.registerModuleAnalyses(modules);
    builder.registerCGSCCAnalyses(calls);
    builder.registerFunctionAnalyses(functions);
    builder.registerLoopAnalyses(loops);
    builder.crossRegisterProxies(loops, functions, calls, modules);
    auto passes = optimise ? builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O2)
                           : builder.buildO0DefaultPipeline(llvm::OptimizationLevel::O0);
    passes.run(module, modules);
  }
};

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

std::variant<std::unique_ptr<Engine>, std::string> Engine::create(bool optimise) {
  initialise_llvm();
  auto state = std::make_unique<State>();
  state->optimise = optimise;
  auto host = llvm::orc::JITTargetMachineBuilder::detectHost();
  if (!host) return text_of(host.takeError());
  host->setCodeGenOptLevel(optimise ? kFastCode : kQuickCode);
  auto machine = host->createTargetMachine();
  if (!machine) return text_of(machine.takeError());
  state->machine = std::move(*machine);
  auto jit = llvm::orc::LLJITBuilder()
                 .setJITTargetMachineBuilder(std::move(*host))
                 .setObjectLinkingLayerCreator(linking_layer)
                 .create();
  if (!jit) return text_of(jit.takeError());
  state->jit = std::move(*jit);

  // Generated code finds runtime functions here only, not among the process's symbols, which the program
  // could define.
  auto& session = state->jit->getExecutionSession();
  state->runtime = &session.createBareJITDylib("runtime");
  llvm::orc::SymbolMap symbols;
  for (const RuntimeSymbol& symbol : runtime_symbols())
    symbols[state->jit->mangleAndIntern(symbol.name)] = symbol_at(symbol.address);
  for (const Builtin& builtin : builtins())
    symbols[state->jit->mangleAndIntern(builtin.symbol)] = symbol_at(builtin.address);
  if (auto error = state->runtime->define(llvm::orc::absoluteSymbols(std::move(symbols))))
    return text_of(std::move(error));
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

std::variant<std::vector<char>, std::string> Engine::compile(llvm::Module& module) {
  module.setDataLayout(state_->jit->getDataLayout());
  module.setTargetTriple(state_->machine->getTargetTriple().str());
  if (llvm::verifyModule(module)) return std::string("internal error: LLVM rejected the generated code");
  state_->run_passes(module);
  auto object = llvm::orc::SimpleCompiler(*state_->machine)(module);
  if (!object) return text_of(object.takeError());
  return std::vector<char>((*object)->getBufferStart(), (*object)->getBufferEnd());
}

std::variant<KernelCode, std::string> Engine::load(const std::string& name, std::span<const char> object,
                                                   bool has_loop) {
  llvm::orc::JITDylib& library = state_->jit->getExecutionSession().createBareJITDylib(name);
  library.addToLinkOrder(*state_->runtime);
  auto copy = llvm::MemoryBuffer::getMemBufferCopy(llvm::StringRef(object.data(), object.size()), name);
  if (auto error = state_->jit->addObjectFile(library, std::move(copy))) return text_of(std::move(error));
  KernelCode code;
  auto thread_entry = state_->jit->lookup(library, kThreadEntryName);
  if (!thread_entry) return text_of(thread_entry.takeError());
  code.thread_entry = entry_at<ThreadEntry>(*thread_entry);
  if (has_loop) {
    auto loop_entry = state_->jit->lookup(library, kLoopEntryName);
    if (!loop_entry) return text_of(loop_entry.takeError());
    code.loop_entry = entry_at<LoopEntry>(*loop_entry);
  }
  return code;
}

}  // namespace gpupool::softgpu
