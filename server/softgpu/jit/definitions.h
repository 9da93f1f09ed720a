// The registers that an instruction writes. Private to jit/'s analyses.
#pragma once
#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu {

// Calls visit(register) for every register that the instruction may write. Takes the first operand for the
// destination, which is conservative for instructions without a destination.
template <typename Visit>
void for_each_definition(const ptx::Function& f, const ptx::Instruction& i, Visit visit) {
  auto operands = f.operands(i);
  if (operands.empty()) return;
  const ptx::Operand& first = operands[0];
  if (first.kind == ptx::Operand::Kind::reg) visit(first.index);
  if (first.kind == ptx::Operand::Kind::pair || first.kind == ptx::Operand::Kind::vector ||
      first.kind == ptx::Operand::Kind::list)
    for (const ptx::Operand& element : f.elements(first)) {
      if (element.kind == ptx::Operand::Kind::reg) visit(element.index);
      if (element.kind == ptx::Operand::Kind::vector)
        for (const ptx::Operand& inner : f.elements(element))
          if (inner.kind == ptx::Operand::Kind::reg) visit(inner.index);
    }
}

}  // namespace gpupool::softgpu
