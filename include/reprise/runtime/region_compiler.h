// A compiler makes one kernel of a region of element-wise operations, for the alternative
// "fused-regions". The Python package has one, which asks PyTorch's inductor. Without a compiler no
// region is fused.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace reprise::runtime {

// A CompiledRegion is a function of a shared object, with the signature `void(char** inputs, char**
// outputs, char** scratch)`. Each pointer is where the tensor of one line `in` or `out` begins, or
// a buffer that the function may write to. The function asks for no memory, and it may run on any
// thread.
struct CompiledRegion {
  std::string library;           // a path
  std::string symbol;            // the name of the function
  std::vector<int64_t> scratch;  // the bytes of each buffer
  std::string refusal;           // if not empty: why there is no such function
};

// A RegionCompiler gets descriptions and returns what becomes of each, in the same order. A
// description has three kinds of lines: tensors that the region reads, calls of ATen's operators,
// and tensors that the region writes, each with type, sizes and strides:
//
//     in a0 float32 (4, 256) (256, 1)
//     v3 = aten.mul.Tensor(a0, look(v2, (4, 128), (256, 1), 128, (4, 256), (256, 1)))
//     out v3 float32 (4, 256) (256, 1)
//
// look() is as_strided() on a value of the region. Its last arguments are the value's own sizes and
// strides. cast() has a value and a type of PyTorch.
using RegionCompiler =
    std::function<std::vector<CompiledRegion>(const std::vector<std::string>& descriptions)>;

// Sets the compiler of this process, or none.
void compile_regions_with(RegionCompiler compiler);

}  // namespace reprise::runtime
