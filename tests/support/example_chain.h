// This is one small chain whose numbers can be followed by hand.
#pragma once

#include "reprise/model/chain.h"

namespace reprise::testing {

// The chain has two stages. x0 = 10, x1 = 20, x2 = 30, gradients are as large except g0 = 5; fixed
// is 100; w0 = 1, w1 = 2.
// Stage 0: "keep" saves 7 and reads both; "lean" saves 3 and reads the input only.
// Stage 1: "keep" saves 9 and reads both; its backward has a workspace of 4.
// Times: fast 10 and 20; keep 11 and 21; lean 12; backward 30 (lean 33) and 40; loss 5.
inline Chain example_chain() {
  Chain chain;
  chain.name = "example";
  chain.fixed = Bytes(100);
  chain.input = {Bytes(10), Bytes(5)};
  Stage first;
  first.name = "first";
  first.output = Bytes(20);
  first.weight_gradient = Bytes(1);
  first.forward.time = Nanos(10);
  StageOption keep;
  keep.saved = Bytes(7);
  keep.forward.time = Nanos(11);
  keep.backward.time = Nanos(30);
  StageOption lean;
  lean.name = "lean";
  lean.saved = Bytes(3);
  lean.reads_output = false;
  lean.forward.time = Nanos(12);
  lean.backward.time = Nanos(33);
  first.options = {keep, lean};
  Stage second;
  second.name = "second";
  second.output = Bytes(30);
  second.weight_gradient = Bytes(2);
  second.forward.time = Nanos(20);
  StageOption keep_second;
  keep_second.saved = Bytes(9);
  keep_second.forward.time = Nanos(21);
  keep_second.backward = {Nanos(40), Bytes(4)};
  second.options = {keep_second};
  chain.stages = {first, second};
  chain.loss.cost.time = Nanos(5);
  return chain;
}

}  // namespace reprise::testing
