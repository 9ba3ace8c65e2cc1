// Tests reading and writing files: defaults, round trips, hashes, and what is on the disk
// afterwards.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "support/example_chain.h"
#include "support/io_text.h"

namespace reprise::testing {
namespace {

namespace fs = std::filesystem;

// Each test has a folder of its own.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "reprise-io-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path_), {}));
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Plan example_plan() {
  Plan plan;
  plan.problem = {.format = "reprise.chain", .name = "example", .sha256 = std::string(64, 'a')};
  plan.planner = "chain";
  plan.termination = Termination::kOptimal;
  plan.schedule_class = "persistent";
  plan.budget = Bytes(1000);
  plan.peak = Bytes(900);
  plan.time = Nanos(123);
  plan.lower_bound = Nanos(123);
  plan.baseline = {.peak = Bytes(2000), .time = Nanos(100)};
  plan.search = SearchCost{.wall = Nanos(12'000'000), .memory = Bytes(4096)};
  plan.actions = {{ActionKind::kRun, "F0", "fast"}, {ActionKind::kFree, "x1", ""}};
  return plan;
}

TEST(ReadChain, FillsInTheDefaults) {
  const Chain chain = parse_chain(kChainText);
  EXPECT_EQ(chain.name, "two");
  EXPECT_EQ(chain.fixed, Bytes(0));
  EXPECT_EQ(chain.input, (ChainInput{Bytes(10), Bytes(0)}));
  ASSERT_EQ(chain.stages.size(), 2u);
  const Stage& first = chain.stages[0];
  EXPECT_EQ(first.output_gradient, std::nullopt);
  EXPECT_EQ(first.weight_gradient, Bytes(0));
  EXPECT_FALSE(first.random);
  const StageOption expected{.name = "keep",
                             .saved = Bytes(7),
                             .reads_input = true,
                             .reads_output = true,
                             .consumes = false,
                             .consumes_input = false,
                             .forward = {Nanos(11), Bytes(0)},
                             .backward = {Nanos(30), Bytes(0)},
                             .exactness = Exactness::kBitwise};
  EXPECT_EQ(first.options[0], expected);
  EXPECT_EQ(chain.loss, (ChainLoss{.cost = {Nanos(5), Bytes(0)}, .consumes = false}));
}

TEST(ReadChain, IgnoresExtensionKeysAtEveryLevel) {
  std::string text = replaced(kChainText, "{\"ns\": 10}", "{\"ns\": 10, \"x-a\": {\"x\": [1.5]}}");
  text = replaced(text, "\"name\": \"two\",", "\"name\": \"two\", \"x-note\": null,");
  ASSERT_FALSE(text.empty());
  EXPECT_EQ(parse_chain(text), parse_chain(kChainText));
}

TEST(ReadChain, TakesTheLargestNumber) {
  const std::string text = replaced(kChainText, "\"bytes\": 10", "\"bytes\": 9223372036854770000");
  EXPECT_EQ(parse_chain(text).input.bytes, Bytes(9223372036854770000));
}

TEST(ReadGraph, FillsInTheDefaults) {
  const Graph graph = parse_graph(kGraphText);
  ASSERT_EQ(graph.values.size(), 3u);
  EXPECT_EQ(graph.values[1].kind, ValueKind::kActivation);
  ASSERT_EQ(graph.ops.size(), 2u);
  EXPECT_EQ(graph.ops[0].phase, Phase::kForward);
  const Variant& variant = graph.ops[0].variants[0];
  EXPECT_EQ(variant.name, "default");
  EXPECT_EQ(variant.role, Role::kAny);
  EXPECT_EQ(variant.exactness, Exactness::kBitwise);
  EXPECT_TRUE(variant.consumes.empty());
  EXPECT_EQ(graph.ops[1].variants[0].reuses, (std::vector<std::pair<int32_t, int32_t>>{{2, 1}}));
  EXPECT_TRUE(graph.choices.empty());
}

TEST(ReadGraph, KnowsConsumedValuesAndChoices) {
  const std::string text = replaced(
      replaced(kGraphText, "\"reuses\": [[\"z\", \"y\"]]", "\"consumes\": [\"y\"]"), "\"results\"",
      "\"choices\": [{\"id\": \"c\", \"realizations\": [[\"b\"]]}], \"results\"");
  const Graph graph = parse_graph(text);
  EXPECT_EQ(graph.ops[1].variants[0].consumes, std::vector<ValueIndex>{1});
  ASSERT_EQ(graph.choices.size(), 1u);
  EXPECT_EQ(graph.choices[0].realizations, (std::vector<Realization>{{"", {1}}}));
  EXPECT_EQ(parse_graph(to_json(graph)), graph);
}

TEST(ReadGraph, VersionTwoHasOwnersAlternativesAndNamesOfRealizations) {
  const Graph graph = parse_graph(kOwnedGraphText);
  EXPECT_EQ(graph.ops[0].owner, "blocks.0");
  EXPECT_EQ(graph.ops[1].owner, "");
  EXPECT_EQ(graph.ops[0].variants[0].alternative, "");
  EXPECT_EQ(graph.ops[0].variants[1].alternative, "g");
  EXPECT_EQ(graph.choices[0].realizations, (std::vector<Realization>{{"", {0}}, {"parts", {1}}}));
  EXPECT_EQ(parse_graph(to_json(graph)), graph);
}

TEST(ReadGraph, VersionThreeHasErrors) {
  const std::string text =
      replaced(replaced(kOwnedGraphText, "\"version\": 2", "\"version\": 3"),
               "\"alternative\": \"g\"", "\"alternative\": \"g\", \"error_ppm\": 3922");
  const Graph graph = parse_graph(text);
  EXPECT_EQ(graph.ops[0].variants[0].error_ppm, 0);
  EXPECT_EQ(graph.ops[0].variants[1].error_ppm, 3922);
  EXPECT_NE(to_json(graph).find("\"version\": 3"), std::string::npos);
  EXPECT_EQ(parse_graph(to_json(graph)), graph);
  Graph wrong = graph;
  wrong.ops[0].variants[1].error_ppm = -1;
  EXPECT_THROW(validate(wrong), InputError);
}

// A graph that only version 2 can hold is written as version 2, and every other one as version 1.
TEST(WriteGraph, TakesTheOldestVersionThatCanHoldTheGraph) {
  const auto says = [](const Graph& graph, const char* text) {
    return to_json(graph).find(text) != std::string::npos;
  };
  Graph graph = parse_graph(kOwnedGraphText);
  const std::string old_hash = problem_id(graph).sha256;
  EXPECT_TRUE(says(graph, "\"version\": 2"));
  graph.ops[0].owner.clear();
  EXPECT_TRUE(says(graph, "\"version\": 2"));
  graph.ops[0].variants[1].alternative.clear();
  EXPECT_TRUE(says(graph, "\"version\": 2"));
  graph.choices[0].realizations[1].name.clear();
  EXPECT_TRUE(says(graph, "\"version\": 1"));
  EXPECT_TRUE(says(graph, "\"realizations\": [[\"f\"], [\"f.1\"]]"));
  EXPECT_EQ(parse_graph(to_json(graph)), graph);
  EXPECT_NE(problem_id(graph).sha256, old_hash);
  graph.ops[0].owner = "m";
  EXPECT_TRUE(says(graph, "\"version\": 2"));
  graph.ops[0].owner.clear();
  graph.ops[0].variants[0].alternative = "a";
  EXPECT_TRUE(says(graph, "\"version\": 2"));
}

TEST(RoundTrip, EveryFormat) {
  Chain chain = example_chain();
  chain.name = "quotes \" and \\ and \xC3\xA9 and \n";
  chain.stages[0].options[1].exactness = Exactness::kRounding;
  chain.stages[0].options[1].consumes = true;
  for (StageOption& option : chain.stages[0].options) option.reads_output = false;
  chain.stages[1].options[0].consumes_input = true;
  chain.stages[0].options[1].stopped = Cost{Nanos(2), Bytes(0)};
  chain.stages[1].output_gradient = Bytes(3);
  chain.stages[1].random = true;
  EXPECT_EQ(parse_chain(to_json(chain)), chain);

  const Graph graph = lower(chain);
  EXPECT_EQ(parse_graph(to_json(graph)), graph);

  const Plan plan = example_plan();
  EXPECT_EQ(parse_plan(to_json(plan)), plan);

  const Frontier frontier{.problem = {"reprise.chain", "example", ""},
                          .planner = "chain",
                          .points = {{Bytes(5), Bytes(4), Nanos(9), Nanos(8)},
                                     {Bytes(6), Bytes(6), Nanos(7), Nanos(7)}}};
  EXPECT_EQ(parse_frontier(to_json(frontier)), frontier);

  const Profile profile{.problem = chain,
                        .device = "cpu",
                        .versions = {{"reprise", "0.1.0"}, {"torch", "2.13.0"}},
                        .threads = 4,
                        .inputs = {"float32[64, 1, 28, 28]"},
                        .signature = "abc",
                        .spread = {{"F0", "fast", 9, Nanos(1), Nanos(2), Nanos(3)}}};
  EXPECT_EQ(parse_profile(to_json(profile)), profile);
  EXPECT_EQ(to_json(profile).find("processor_percent"), std::string::npos);
  Profile busy = profile;
  busy.processor_percent = 62;
  EXPECT_EQ(parse_profile(to_json(busy)), busy);
}

TEST(ReadProfile, OnlyVersion2HasTheShareOfTheProcessor) {
  Profile busy;
  busy.problem = parse_chain(kChainText);
  busy.processor_percent = 62;
  const std::string text = to_json(busy);
  const std::string too_much =
      replaced(text, "\"processor_percent\": 62", "\"processor_percent\": 101");
  ASSERT_FALSE(too_much.empty());
  EXPECT_THROW(parse_profile(too_much), InputError);
  // The first version in the text is that of the profile; the chain inside has its own.
  const std::string old = replaced(text, "\"version\": 2", "\"version\": 1");
  ASSERT_FALSE(old.empty());
  EXPECT_THROW(parse_profile(old), InputError);
}

TEST(RoundTrip, WritingIsStable) {
  const std::string text = to_json(example_chain());
  EXPECT_EQ(to_json(parse_chain(text)), text);
  EXPECT_EQ(text.back(), '\n');
}

TEST(ReadProblem, ProfilesYieldTheProblemThatTheyWrap) {
  const Profile profile{.problem = parse_chain(kChainText),
                        .device = "cpu",
                        .versions = {},
                        .threads = 1,
                        .inputs = {},
                        .signature = "",
                        .spread = {}};
  const std::string text = to_json(profile);
  EXPECT_EQ(parse_chain(text), parse_chain(kChainText));
  const Problem problem = parse_problem(text);
  ASSERT_NE(problem.chain(), nullptr);
  EXPECT_EQ(problem.id.format, "reprise.chain");
  // This is the identity of the chain inside, not of the file.
  EXPECT_EQ(problem.id, problem_id(*problem.chain()));
}

TEST(ReadProblem, ChainsAreLoweredAndGraphsAreNot) {
  EXPECT_EQ(parse_problem(kChainText).graph(), lower(parse_chain(kChainText)));
  const Problem problem = parse_problem(kGraphText);
  EXPECT_EQ(problem.chain(), nullptr);
  EXPECT_EQ(problem.graph(), parse_graph(kGraphText));
  EXPECT_EQ(problem.id.name, "small");
}

TEST(CanonicalHash, IsSha256OfSortedKeysWithoutWhiteSpaceAndExtensions) {
  // The expected hash comes from this command, with the letter as UTF-8: printf
  // '{"a":[1,true,null],"b":{"c":"\u00e9"}}' | sha256sum
  const std::string expected = "797e35826c77c527ba94a1128bc63fa1396d8fc0a6f1c301b3bab9f1fa45aa78";
  EXPECT_EQ(canonical_sha256("{\"a\":[1,true,null],\"b\":{\"c\":\"\xC3\xA9\"}}"), expected);
  EXPECT_EQ(
      canonical_sha256("{ \"b\": {\"c\": \"\\u00e9\", \"x-d\": 1},\n\"a\": [1, true, null] }"),
      expected);
  EXPECT_NE(canonical_sha256("{\"a\":[1,true,null],\"b\":{\"c\":\"e\"}}"), expected);
}

TEST(CanonicalHash, DefaultsAreNotFilledIn) {
  const std::string explicit_default =
      replaced(kChainText, "\"name\": \"two\",", "\"name\": \"two\", \"fixed_bytes\": 0,");
  EXPECT_EQ(parse_chain(explicit_default), parse_chain(kChainText));
  EXPECT_NE(canonical_sha256(explicit_default), canonical_sha256(kChainText));
}

TEST(WriteFile, CreatesAndReplacesWithoutLeavingAnythingElse) {
  const TemporaryFolder folder;
  const fs::path file = folder / "a.json";
  write_file(file, "one");
  EXPECT_EQ(read_file(file), "one");
  ASSERT_EQ(::chmod(file.c_str(), 0640), 0);
  write_file(file, "two");
  EXPECT_EQ(read_file(file), "two");
  struct stat status = {};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(WriteFile, ALinkStaysALink) {
  const TemporaryFolder folder;
  write_file(folder / "target", "old");
  fs::create_symlink("target", folder / "link");
  write_file(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "target"), "new");
  fs::create_symlink("later", folder / "dangling");
  write_file(folder / "dangling", "made");
  EXPECT_EQ(read_file(folder / "later"), "made");
}

TEST(WriteFile, DevicesAreWrittenInPlace) {
  write_file("/dev/null", "text");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

// Returns the location of the InputError. Any other error fails the test.
Location refused_write(const fs::path& path) {
  try {
    write_file(path, "new content");
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("cannot write"), std::string::npos) << error.what();
    return error.where();
  }
  ADD_FAILURE() << path << " was written";
  return {};
}

TEST(WriteFile, RefusalsNameThePathAndLeaveEverythingAsItWas) {
  const TemporaryFolder folder;
  write_file(folder / "file", "old");
  fs::create_directory(folder / "folder");
  fs::create_symlink("loop", folder / "loop");
  for (const char* name : {"missing/a.json", "file/a.json", "folder", "loop"}) {
    EXPECT_EQ(refused_write(folder / name).file, (folder / name).string());
  }
  EXPECT_EQ(refused_write(folder / std::string(300, 'n')).file,
            (folder / std::string(300, 'n')).string());
  EXPECT_EQ(refused_write("/dev/full").file, "/dev/full");
  EXPECT_THROW(write_file("", "x"), InputError);
  EXPECT_THROW(write_file(folder / std::string("a\0b", 3), "x"), InputError);
  EXPECT_EQ(read_file(folder / "file"), "old");
  EXPECT_EQ(folder.entries(), 3u);
}

TEST(WriteFile, AReadOnlyFileIsNotReplaced) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everything";
  const TemporaryFolder folder;
  write_file(folder / "file", "old");
  ASSERT_EQ(::chmod((folder / "file").c_str(), 0444), 0);
  EXPECT_EQ(refused_write(folder / "file").file, (folder / "file").string());
  EXPECT_EQ(read_file(folder / "file"), "old");
}

TEST(ReadFile, RefusesWhatIsMissingAFolderOrTooLarge) {
  const TemporaryFolder folder;
  EXPECT_THROW(read_file(folder / "missing"), InputError);
  EXPECT_THROW(read_file(folder.path()), InputError);
  write_file(folder / "file", "12345");
  EXPECT_EQ(read_file(folder / "file", 5), "12345");
  EXPECT_THROW(read_file(folder / "file", 4), InputError);
  EXPECT_THROW(read_file("/dev/zero", 100'000), InputError);
}

TEST(ReadFile, ErrorsInsideNameTheFile) {
  const TemporaryFolder folder;
  write_file(folder / "bad.json", "{\n\"format\": 3\n}");
  try {
    load_problem(folder / "bad.json");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.where(), (Location{(folder / "bad.json").string(), "/format", 2}));
  }
}

TEST(WriteJson, RefusesWhatCouldNotBeRead) {
  Chain chain = example_chain();
  chain.name = "\xFF";
  EXPECT_THROW(to_json(chain), InputError);
  chain = example_chain();
  chain.fixed = Bytes(-1);
  EXPECT_THROW(to_json(chain), InputError);
  Plan plan = example_plan();
  plan.problem.format = "";
  EXPECT_THROW(to_json(plan), InputError);
  plan = example_plan();
  plan.peak = Bytes(-5);
  EXPECT_THROW(to_json(plan), InputError);
  Graph graph = parse_graph(kGraphText);
  graph.results = {7};
  EXPECT_THROW(to_json(graph), InputError);
}

TEST(ExampleChains, AreRead) {
  const fs::path folder = fs::path(REPRISE_SOURCE_DIR) / "data" / "instances" / "chains";
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    ++count;
    EXPECT_NO_THROW(load_problem(entry.path())) << entry.path();
  }
  EXPECT_GE(count, 6u);
}

}  // namespace
}  // namespace reprise::testing
