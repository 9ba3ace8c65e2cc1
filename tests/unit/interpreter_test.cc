#include "reprise/run/interpreter.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/run/bookkeeping.h"
#include "support/build_graph.h"
#include "support/example_chain.h"

namespace reprise::testing {
namespace {

class RecordingBackend final : public Backend {
 public:
  void run(const RunAction& step) override {
    runs.push_back(step);
    log += "r" + std::to_string(step.op);
    if (runs.size() == fail_at) throw std::runtime_error("device lost");
  }
  void free(ValueIndex value, int32_t /*memory*/) override { log += "f" + std::to_string(value); }

  std::vector<RunAction> runs;
  std::string log;
  size_t fail_at = 0;
};

TEST(Interpreter, ActionsReachTheBackendInOrder) {
  RecordingBackend backend;
  execute(Program(two_op_graph(), {run("a"), run("b"), release("y")}), backend);
  EXPECT_EQ(backend.log, "r0r1f1");
}

TEST(Interpreter, TheHalvesBeforeAndFromTheLossCanRunApart) {
  const Graph graph = lower(example_chain());
  const Program program(graph, with_frees(graph, plain_runs(graph)));
  EXPECT_EQ(program.loss(), 2u);
  RecordingBackend backend;
  execute(program, 0, program.loss(), backend);
  EXPECT_EQ(backend.log, "r0r1");
  execute(program, program.loss(), program.entries().size(), backend);
  EXPECT_EQ(backend.log.substr(4, 4), "r2r3");
  EXPECT_THROW(execute(program, 3, 2, backend), InternalError);
  EXPECT_THROW(execute(program, 0, 99, backend), InternalError);
}

TEST(Interpreter, WithoutALossAllIsForward) {
  EXPECT_EQ(Program(two_op_graph(), {run("a")}).loss(), 1u);
}

// The state of a random op that runs once is not kept, because that costs time and memory for
// nothing.
TEST(Interpreter, RandomStateIsKeptByFirstRunsThatAreRepeatedOnly) {
  Chain chain = example_chain();
  chain.stages[0].random = chain.stages[1].random = true;
  const Graph graph = lower(chain);
  RecordingBackend backend;
  execute(Program(graph, with_frees(graph, {{0, 0}, {1, 1}, {2, 0}, {3, 0}, {0, 1}, {4, 0}})),
          backend);
  const std::vector<RunAction> expected = {{0, 0, true, true, false},  {1, 1, true, false, false},
                                           {2, 0, true, false, false}, {3, 0, true, false, false},
                                           {0, 1, false, false, true}, {4, 0, true, false, false}};
  EXPECT_EQ(backend.runs, expected);
}

TEST(Interpreter, OpsThatAreNotRandomNeverTouchTheState) {
  const Graph graph = two_op_graph();
  RecordingBackend backend;
  execute(Program(graph, {run("a"), release("y"), run("a")}), backend);
  const std::vector<RunAction> expected = {{0, 0, true, false, false}, {0, 0, false, false, false}};
  EXPECT_EQ(backend.runs, expected);
}

TEST(Interpreter, ExceptionsOfTheBackendPassThroughAndStopTheWalk) {
  RecordingBackend backend;
  backend.fail_at = 1;
  EXPECT_THROW(execute(Program(two_op_graph(), {run("a"), run("b")}), backend), std::runtime_error);
  EXPECT_EQ(backend.log, "r0");
}

TEST(Interpreter, UnknownIdsAreInputErrors) {
  EXPECT_THROW(Program(two_op_graph(), {run("nobody")}), InputError);
  EXPECT_THROW(Program(two_op_graph(), {release("nothing")}), InputError);
}

TEST(Bookkeeping, CountsWhatTheSimulatorCounts) {
  const Graph graph = lower(example_chain());
  BookkeepingBackend books(graph);
  EXPECT_EQ(books.live(), Bytes(110));
  execute(Program(graph, with_frees(graph, plain_runs(graph))), books);
  EXPECT_EQ(books.live(), Bytes(118));
  EXPECT_EQ(books.peak(), Bytes(232));
  EXPECT_EQ(books.time(), Nanos(107));
  EXPECT_EQ(books.runs(0), 1);
}

TEST(Bookkeeping, SecondCopiesReusedAndConsumedValuesAreCountedAsDefined) {
  Graph graph = two_op_graph();
  graph.values[2].bytes = Bytes(20);
  graph.ops[1].variants[0].reuses = {{2, 1}};
  BookkeepingBackend books(graph);
  execute(Program(graph, {run("a"), run("a")}), books);
  EXPECT_EQ(books.peak(), Bytes(155));
  EXPECT_EQ(books.live(), Bytes(130));
  execute(Program(graph, {run("b")}), books);
  EXPECT_EQ(books.live(), Bytes(130));
  EXPECT_EQ(books.peak(), Bytes(155));
  EXPECT_EQ(books.runs(0), 2);
}

TEST(Bookkeeping, ARunOnWhatIsNotThereIsAnInternalError) {
  const Graph graph = two_op_graph();
  BookkeepingBackend books(graph);
  EXPECT_THROW(execute(Program(graph, {run("b")}), books), InternalError);
  EXPECT_THROW(execute(Program(graph, {release("y")}), books), InternalError);
}

}  // namespace
}  // namespace reprise::testing
