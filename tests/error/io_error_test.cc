// Malformed documents are refused with an InputError that names file, JSON pointer and line. A test
// here fails when the refusal is any other error, an InternalError too.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "support/io_text.h"

namespace reprise::testing {
namespace {

struct Case {
  const char* from;  // replaced in a good file
  const char* to;
  const char* pointer;
  int64_t line;
  const char* says;  // part of the message
};

using Parse = std::function<void(const std::string&)>;

void expect_refusals(const std::string& good, const Parse& parse, const std::vector<Case>& cases) {
  for (const Case& item : cases) {
    SCOPED_TRACE(std::string(item.from) + "  ->  " + item.to);
    const std::string text = replaced(good, item.from, item.to);
    ASSERT_FALSE(text.empty()) << "the good file has no such part";
    try {
      parse(text);
      ADD_FAILURE() << "accepted";
    } catch (const InputError& error) {
      EXPECT_EQ(error.where(), (Location{"file.json", item.pointer, item.line})) << error.what();
      EXPECT_NE(std::string(error.what()).find(item.says), std::string::npos) << error.what();
    }
  }
}

TEST(MalformedChain, IsRefusedWithFilePointerAndLine) {
  const std::vector<Case> cases = {
      {"reprise.chain", "reprise.chains", "/format", 2, "reprise.profile"},
      {"reprise.chain", "reprise.plan", "/format", 2, "reprise.chain"},
      {"\"version\": 1", "\"version\": 2", "/version", 3, "newer"},
      {"\"version\": 1", "\"version\": 0", "/version", 3, "no version 0"},
      {"\"version\": 1", "\"version\": \"1\"", "/version", 3, "an integer"},
      {"  \"version\": 1,\n", "", "", 1, "\"version\" is missing"},
      {"\"name\": \"two\",", "\"nam\": \"two\",", "", 1, "\"name\" is missing"},
      {"\"name\": \"two\",", "\"name\": \"two\", \"extra\": 1,", "/extra", 4, "unknown key"},
      {"\"name\": \"two\",", "\"name\": \"two\", \"name\": \"2\",", "/name", 4, "twice"},
      {"\"name\": \"two\",", "\"name\": 2,", "/name", 4, "a string"},
      {"\"name\": \"two\",", "\"name\": null,", "/name", 4, "a string"},
      {"{\"bytes\": 10}", "{\"bytes\": -10}", "/input/bytes", 5, "negative"},
      {"{\"bytes\": 10}", "{\"bytes\": -0}", "/input/bytes", 5, "negative"},
      {"{\"bytes\": 10}", "{\"bytes\": 10.0}", "/input/bytes", 5, "a point or an exponent"},
      {"{\"bytes\": 10}", "{\"bytes\": 1e3}", "/input/bytes", 5, "a point or an exponent"},
      {"{\"bytes\": 10}", "{\"bytes\": 9223372036854775808}", "/input/bytes", 5, "above"},
      {"{\"bytes\": 10}", "{\"bytes\": 99999999999999999999999}", "/input/bytes", 5, "above"},
      {"{\"bytes\": 10}", "{\"bytes\": true}", "/input/bytes", 5, "a boolean"},
      {"{\"bytes\": 10}", "{\"bytes\": \"10\"}", "/input/bytes", 5, "a string"},
      {"{\"bytes\": 10}", "{\"bytes\": [10]}", "/input/bytes", 5, "an array"},
      {"{\"bytes\": 10}", "{\"bytes\":\n\n-10}", "/input/bytes", 7, ""},
      {"{\"bytes\": 10}", "10", "/input", 5, "an object"},
      {"{\"bytes\": 10}", "{}", "/input", 5, "\"bytes\" is missing"},
      {"\"saved_bytes\": 3", "\"saved_bytes\": -3", "/stages/0/options/1/saved_bytes", 13, ""},
      {"\"saved_bytes\": 3, ", "", "/stages/0/options/1", 13, "\"saved_bytes\" is missing"},
      {"\"lean\"", "\"keep\"", "/stages/0/options/1/name", 13, "two options"},
      {"\"lean\"", "\"fast\"", "/stages/0/options/1/name", 13, "fast"},
      {"\"lean\"", "\"\"", "/stages/0/options/1/name", 13, "name"},
      {"\"lean\",", "\"lean\", \"exactness\": \"exact\",", "/stages/0/options/1/exactness", 13,
       "\"bitwise\""},
      {"\"lean\",", "\"lean\", \"reads_input\": 1,", "/stages/0/options/1/reads_input", 13,
       "true or false"},
      {"\"lean\",", "\"lean\", \"a/b~c\": 1,", "/stages/0/options/1/a~1b~0c", 13, "unknown key"},
      {"{\"ns\": 20, \"workspace_bytes\": 4}", "{\"ns\": 20, \"workspace\": 4}",
       "/stages/1/forward/workspace", 19, "unknown key"},
      {"\"output_bytes\": 30", "\"output_bytes\": 9223372036854775807", "/stages/1/output_bytes",
       18, "64 bits"},
      {"\"loss\": {\"ns\": 5}", "\"loss\": {\"ns\": 5, \"consumes\": true}", "/loss/consumes", 25,
       "loss"},
      {"\"loss\": {\"ns\": 5}", "\"loss\": {}", "/loss", 25, "\"ns\" is missing"},
  };
  expect_refusals(
      kChainText, [](const std::string& text) { parse_problem(text, "file.json"); }, cases);
}

TEST(MalformedChain, NeedsAStage) {
  const std::string text = R"({"format": "reprise.chain", "version": 1, "name": "",
    "input": {"bytes": 1},
    "stages": []})";
  try {
    parse_chain(text, "file.json");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.where(), (Location{"file.json", "/stages", 3}));
  }
}

TEST(MalformedGraph, IsRefusedWithFilePointerAndLine) {
  const std::vector<Case> cases = {
      {"\"reads\": [\"x\"]", "\"reads\": [\"q\"]", "/ops/0/variants/0/reads/0", 11, "no value"},
      {"\"reads\": [\"x\"]", "\"reads\": \"x\"", "/ops/0/variants/0/reads", 11, "an array"},
      {"\"reads\": [\"x\"]", "\"reads\": [0]", "/ops/0/variants/0/reads/0", 11, "a string"},
      {"\"reads\": [\"x\"]", "\"reads\": [\"z\"]", "/ops/0/variants/0/reads", 11, ""},
      {"\"id\": \"y\"", "\"id\": \"x\"", "/ops/0/variants/0/writes/0", 11, "no value \"y\""},
      {"\"id\": \"z\", \"bytes\"", "\"id\": \"z\", \"byte\"", "/values/2", 8, "missing"},
      {"\"kind\": \"input\"", "\"kind\": \"inputs\"", "/values/0/kind", 6, "\"activation\""},
      {"\"id\": \"b\"", "\"id\": \"f\"", "/ops/1/id", 12, "twice"},
      {"\"backward\"", "\"sideways\"", "/ops/1/phase", 12, "\"loss\""},
      {"[\"z\", \"y\"]", "[\"z\"]", "/ops/1/variants/0/reuses/0", 13, "pair"},
      {"[\"z\", \"y\"]", "[\"y\", \"z\"]", "/ops/1/variants/0/reuses/0", 13, ""},
      {"\"reuses\": [[\"z\", \"y\"]]", "\"consumes\": [\"x\"]", "/ops/1/variants/0/consumes", 13,
       ""},
      {"\"results\": [\"z\"]", "\"results\": [\"w\"]", "/results/0", 15, "no value"},
      {"\"results\": [\"z\"]", "\"results\": [\"z\"], \"choices\": [{\"id\": \"c\"}]", "/choices/0",
       15, "missing"},
      {"\"results\": [\"z\"]",
       "\"results\": [\"z\"], \"choices\": [{\"id\": \"c\", \"realizations\": [[\"q\"]]}]",
       "/choices/0/realizations/0/0", 15, "no operation"},
  };
  expect_refusals(
      kGraphText, [](const std::string& text) { parse_graph(text, "file.json"); }, cases);
}

TEST(MalformedGraph, OfVersionTwoIsRefusedWithFilePointerAndLine) {
  const char* owned = "\"owner\": \"blocks.0\", ";
  const char* named = "\"name\": \"parts\", ";
  const std::vector<Case> cases = {
      {"\"version\": 2", "\"version\": 4", "/version", 3, "versions 1 to 3"},
      {"\"alternative\": \"g\"", "\"alternative\": \"g\", \"at\": \"gpu\"", "/ops/0/variants/1/at",
       11, "unknown key"},
      {"\"version\": 2", "\"version\": 1", "/ops/0/variants/1/alternative", 11, "unknown key"},
      {owned, "\"owner\": 1, ", "/ops/0/owner", 10, "a string"},
      {owned, "\"owners\": \"b\", ", "/ops/0/owners", 10, "unknown key"},
      {"\"alternative\": \"g\"", "\"alternative\": null", "/ops/0/variants/1/alternative", 11,
       "a string"},
      {"{\"ops\": [\"f\"]}", "[\"f\"]", "/choices/0/realizations/0", 14, "an object"},
      {"{\"ops\": [\"f\"]}", "{}", "/choices/0/realizations/0", 14, "\"ops\" is missing"},
      {named, "\"name\": 1, ", "/choices/0/realizations/1/name", 14, "a string"},
      {named, "\"name\": \"parts\", \"id\": \"p\", ", "/choices/0/realizations/1/id", 14,
       "unknown key"},
      {"[\"f.1\"]", "[\"q\"]", "/choices/0/realizations/1/ops/0", 14, "no operation"},
      {"[\"f.1\"]", "[]", "/choices/0/realizations/1", 14, "needs an operation"},
      {"[\"f.1\"]", "[\"f\"]", "/choices/0/realizations/1", 14, "two realizations"},
  };
  expect_refusals(
      kOwnedGraphText, [](const std::string& text) { parse_graph(text, "file.json"); }, cases);
}

// A key of version 2 is unknown in version 1, and a realization is an array there.
TEST(MalformedGraph, OfVersionOneHasNothingOfVersionTwo) {
  const std::vector<Case> cases = {
      {"\"version\": 1", "\"version\": 4", "/version", 3, "versions 1 to 3"},
      {"{\"id\": \"f\",", "{\"id\": \"f\", \"owner\": \"m\",", "/ops/0/owner", 11, "unknown key"},
      {"\"results\"",
       "\"choices\": [{\"id\": \"c\", \"realizations\": [{\"ops\": [\"b\"]}]}], \"results\"",
       "/choices/0/realizations/0", 15, "an array"},
  };
  expect_refusals(
      kGraphText, [](const std::string& text) { parse_graph(text, "file.json"); }, cases);
}

TEST(MalformedGraph, OfVersionTwoHasNothingOfVersionThree) {
  expect_refusals(kOwnedGraphText, [](const std::string& text) { parse_graph(text, "file.json"); },
                  {{"\"alternative\": \"g\"", "\"alternative\": \"g\", \"error_ppm\": 4",
                    "/ops/0/variants/1/error_ppm", 11, "unknown key"}});
}

TEST(MalformedPlan, IsRefusedWithFilePointerAndLine) {
  const std::vector<Case> cases = {
      {"reprise.plan", "reprise.chain", "/format", 2, "reprise.plan"},
      {"\"reprise.graph\"", "\"reprise.plan\"", "/problem/format", 4, "reprise.chain"},
      {"\"name\": \"small\"", "\"name\": \"small\", \"sha256\": \"abc\"", "/problem/sha256", 4,
       "64"},
      {"\"feasible\"", "\"perfect\"", "/termination", 6, "\"optimal\""},
      {"  \"planner\": \"hand\",\n", "", "", 1, "\"planner\" is missing"},
      {"\"peak_bytes\": 16,\n", "\"peak_bytes\": 16.5,\n", "/peak_bytes", 9, "point"},
      {"{\"peak_bytes\": 16, \"time_ns\": 3}", "{\"peak_bytes\": 16}", "/baseline", 12, "missing"},
      {"[\"run\", \"f\", \"default\"]", "[\"run\", \"f\"]", "/actions/0", 14, "a run is"},
      {"[\"run\", \"f\", \"default\"]", "[\"free\", \"f\", \"x\"]", "/actions/0", 14, "a free is"},
      {"[\"run\", \"f\", \"default\"]", "[]", "/actions/0", 14, "an action is"},
      {"[\"run\", \"f\", \"default\"]", "[\"jump\", \"f\"]", "/actions/0/0", 14, "\"free\""},
      {"[\"run\", \"f\", \"default\"]", "[\"run\", 1, \"x\"]", "/actions/0/1", 14, "a string"},
      {"[\"run\", \"f\", \"default\"]", "\"run\"", "/actions/0", 14, "an array"},
      {"\"planner\"",
       "\"search\": {\"wall_ms\": 9223372036854775, \"memory_bytes\": 1}, \"planner\"",
       "/search/wall_ms", 5, "64 bits"},
  };
  expect_refusals(
      kPlanText, [](const std::string& text) { parse_plan(text, "file.json"); }, cases);
}

TEST(MalformedProfile, MistakesInTheProblemHaveTheirPlaceInTheProfile) {
  const std::string text = "{\"format\": \"reprise.profile\", \"version\": 1, \"problem\":\n" +
                           replaced(kChainText, "\"lean\"", "\"keep\"") + ", \"device\": \"cpu\"}";
  try {
    parse_problem(text, "file.json");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.where(), (Location{"file.json", "/problem/stages/0/options/1/name", 14}));
  }
}

TEST(MalformedFrontier, PointsMustDescend) {
  const std::string text =
      R"({"format": "reprise.frontier", "version": 1, "planner": "chain",
"problem": {"format": "reprise.chain", "name": "n"}, "points": [
{"budget_bytes": 1, "peak_bytes": 1, "time_ns": 5, "lower_bound_ns": 5},
{"budget_bytes": 2, "peak_bytes": 1, "time_ns": 5, "lower_bound_ns": 5}]})";
  try {
    parse_frontier(text, "file.json");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.where(), (Location{"file.json", "/points/1", 4}));
  }
}

TEST(MalformedRunLog, IsRefusedWithFilePointerAndLine) {
  const std::vector<Case> cases = {
      {"reprise.runlog", "reprise.plan", "/format", 2, "reprise.runlog"},
      {"\"version\": 1", "\"version\": 2", "/version", 3, "newer"},
      {"reprise.graph", "reprise.runlog", "/problem/format", 4, "reprise.chain"},
      {"\"device\": \"cpu\"", "\"device\": 1", "/device", 5, "a string"},
      {"\"steps\": 5", "\"steps\": 0", "/steps", 6, "at least 1"},
      {"  \"steps\": 5,\n", "", "", 1, "\"steps\" is missing"},
      {"\"time_ns\": 3", "\"time_ns\": -3", "/planned/time_ns", 7, "negative"},
      {"\"time_ns\": 7", "\"time_ns\": 7, \"ms\": 1", "/measured/ms", 8, "unknown key"},
      {"\"action\": 0", "\"action\": 1", "/actions/1/action", 12, "ascend"},
      {"\"action\": 0", "\"action\": -1", "/actions/0/action", 10, "negative"},
      {"\"op\": \"f\"", "\"op\": null", "/actions/0/op", 10, "a string"},
      {"\"measured_ns\": 2}", "\"took\": 2}", "/actions/0", 10, "\"measured_ns\" is missing"},
      {"\"planned_bytes\": 16", "\"planned_bytes\": 1.5", "/actions/0/planned_bytes", 11, "point"},
  };
  expect_refusals(
      kRunLogText, [](const std::string& text) { parse_run_log(text, "file.json"); }, cases);
}

struct Broken {
  std::string text;
  std::string pointer;
  int64_t line;
};

TEST(NotJson, IsRefusedWithTheLineWhereReadingStopped) {
  std::string zeros;  // the pointer of the first element that is too deep
  for (int level = 0; level < 64; ++level) zeros += "/0";
  const std::vector<Broken> cases = {
      {"", "", 1},
      {" \n\n", "", 2},
      {"{", "", 1},
      {"{\n\"a\": [1,\n2\n", "/a/1", 3},
      {"{\"a\": 1} x", "", 1},
      {"{\"a\": 1}\n{}", "", 2},
      {"{\"a\": 1,}", "/a", 1},
      {"{\"a\" 1}", "/a", 1},
      {"{\n'a': 1}", "", 2},
      {"{\"a\": nul}", "/a", 1},
      {"{\"a\": 01}", "/a", 1},
      {"{\"a\": 1e999}", "/a", 1},
      {"{\"a\": \"\xFF\"}", "/a", 1},
      {"{\"a\": \"\xC0\x80\"}", "/a", 1},
      {"{\"a\": \"\xED\xA0\x80\"}", "/a", 1},
      {"{\"a\": \"\\ud800\"}", "/a", 1},
      {"{\"a\": \"line\nbreak\"}", "/a", 1},
      {"{\"a\": // no comments\n1}", "/a", 1},
      {"\xEF\xBB", "", 1},
      {std::string("{\"a\": \0}", 8), "/a", 1},
      {"{\"a\": {\"b\": [0, {\"c\": 1, \"c\": 2}]}}", "/a/b/1/c", 1},
      {std::string(64, '[') + "\n[" + std::string(65, ']'), zeros, 2},
  };
  for (const Broken& item : cases) {
    SCOPED_TRACE(item.text);
    try {
      parse_problem(item.text, "file.json");
      ADD_FAILURE() << "accepted";
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().file, "file.json");
      EXPECT_EQ(error.where().line, item.line) << error.what();
      EXPECT_EQ(error.where().pointer, item.pointer) << error.what();
    }
  }
}

TEST(NotJson, MessagesStayShortAndPrintable) {
  const std::string text = "{\"a\": \"" + std::string(100'000, 'k') + "\x1b\"}";
  try {
    parse_problem(text, "file.json");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_LT(std::string(error.what()).size(), 500u);
    EXPECT_EQ(std::string(error.what()).find('\x1b'), std::string::npos);
  }
}

TEST(NotJson, LimitsAreChecked) {
  EXPECT_THROW(parse_problem("[\"" + std::string(2'000'000, 'k') + "\"]"), InputError);
  EXPECT_THROW(parse_problem("{\"" + std::string(5'000, 'k') + "\": 1}"), InputError);
  // Deep nesting takes no stack space.
  EXPECT_THROW(parse_problem(std::string(10'000'000, '[')), InputError);
}

TEST(NotAnObject, IsRefused) {
  for (const char* text : {"[]", "1", "\"chain\"", "null", "true", "[{}]"}) {
    EXPECT_THROW(parse_problem(text), InputError) << text;
    EXPECT_THROW(parse_chain(text), InputError) << text;
    EXPECT_THROW(parse_graph(text), InputError) << text;
    EXPECT_THROW(parse_plan(text), InputError) << text;
    EXPECT_THROW(parse_frontier(text), InputError) << text;
    EXPECT_THROW(parse_profile(text), InputError) << text;
    EXPECT_THROW(parse_run_log(text), InputError) << text;
  }
}

}  // namespace
}  // namespace reprise::testing
