// Bad input to libhetcomm_plan: every document that is cut off, changed in one byte, of another
// version or with other fields ends with a status and a text.
#include <random>
#include <string>

#include "tests/capi/bad_input.h"
#include "tests/capi/plan_documents.h"

namespace hetcomm_test {
namespace {

struct Function {
  const char* name;
  PlanFunction call;
  std::string document;
};

// A question with links, sums and activations, whose plan has several hops.
std::string long_question() {
  return R"({"format": "hetcomm reshard question", "version": 1,
    "layouts": {
      "acts": {"activations": {"batch": 2, "sequence": 4, "hidden": 2, "data": 2, "tensor": 2,
                               "order": "tdc", "zigzag": false, "ranks": [0, 1, 2, 3]}},
      "cut": {"shape": [2, 4, 2],
              "mesh": {"axes": [2, 2], "ranks": [4, 5, 6, 7], "uneven": "ceil", "view_offset": 1,
                       "placements": [{"kind": "strided", "dimension": 1, "split": 2},
                                      {"kind": "shard", "dimension": 2, "sizes": [1, 1]}]}}},
    "tensors": [{"source": "acts", "destination": "cut", "type": "float32",
                 "destination_type": "bfloat16"}],
    "strategy": "leader", "outer": 2, "slice_bytes": 8, "prove": false,
    "links": {"model": )" +
         answer(hetcomm_links_infer, kMeasurements, HETCOMM_PLAN_JSON) +
         R"(, "hosts": ["a", "a", "a", "a", "b", "b", "b", "b"]}})";
}

std::vector<Function> functions() {
  const std::string model = answer(hetcomm_links_infer, kMeasurements, HETCOMM_PLAN_JSON);
  const std::string plan = answer(hetcomm_draft_reshard, kQuestion, HETCOMM_PLAN_JSON);
  const std::string hops = answer(hetcomm_draft_reshard, long_question(), HETCOMM_PLAN_JSON);
  return {{"infer", hetcomm_links_infer, kMeasurements},
          {"links", hetcomm_links_draw, model},
          {"machine", hetcomm_machine_draw, kMachine},
          {"layout", hetcomm_draft_layout, kLayout},
          {"question", hetcomm_draft_reshard, kQuestion},
          {"long question", hetcomm_draft_reshard, long_question()},
          {"plan", hetcomm_draft_draw, plan},
          {"plan of several hops", hetcomm_draft_draw, hops},
          {"schedule", hetcomm_draft_schedule, kScheduleQuestion},
          {"pipeline plan", hetcomm_draft_pipeline, kPipelinePlan},
          {"forecast", hetcomm_draft_forecast, forecast_question(model)},
          {"arranged schedule", hetcomm_draft_schedule,
           R"({"format": "hetcomm schedule question", "version": 1, "limits": [2],
             "times": {"stages": [{"forward_ns": 10, "input_grad_ns": 9, "weight_grad_ns": 8}]},
             "schedule": {"name": "arranged", "ranks": 2, "chunks": 1, "order": "v",
                          "micro_batches": 3, "effort": 100, "seed": 7}})"},
          {"schedule of actions", hetcomm_draft_schedule,
           R"({"format": "hetcomm schedule question", "version": 1, "in_flight": [2],
             "schedule": {"rank_of": [0, 1], "actions": [["0F0", "0F1", "0I0", "0W0", "0B1"],
                          ["1F0", "", "(1F1;1B0)OVERLAP_F_B", "1B1"]]}})"}};
}

BadCall bad(const char* what, hetcomm_status_t expected, PlanFunction function,
            const std::string& document, int32_t form = HETCOMM_PLAN_TEXT) {
  return {what, expected, [=](Outputs& out) {
            return function(document.c_str(), form, 8, out.first<char>(), out.second<size_t>());
          }};
}

std::string changed(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(BadPlan, InvalidCallsAreRefused) {
  for (const Function& each : functions()) {
    SCOPED_TRACE(each.name);
    const std::string& good = each.document;
    const std::string other_version = changed(
        good, good.find("\"version\":1") == std::string::npos ? "\"version\": 1" : "\"version\":1",
        "\"version\":2");
    expect_refused(
        {
            {"no document", HETCOMM_INVALID_ARGUMENT,
             [&](Outputs& out) {
               return each.call(nullptr, HETCOMM_PLAN_TEXT, 8, out.first<char>(),
                                out.second<size_t>());
             }},
            {"no text", HETCOMM_INVALID_ARGUMENT,
             [&](Outputs& out) {
               return each.call(good.c_str(), HETCOMM_PLAN_TEXT, 8, nullptr, out.second<size_t>());
             }},
            {"no size", HETCOMM_INVALID_ARGUMENT,
             [&](Outputs& out) {
               return each.call(good.c_str(), HETCOMM_PLAN_TEXT, 8, out.first<char>(), nullptr);
             }},
            bad("no such form", HETCOMM_INVALID_ARGUMENT, each.call, good, 5),
            bad("a negative form", HETCOMM_INVALID_ARGUMENT, each.call, good, -1),
            bad("empty", HETCOMM_INVALID_ARGUMENT, each.call, ""),
            bad("a number", HETCOMM_INVALID_ARGUMENT, each.call, "7"),
            bad("another object", HETCOMM_INVALID_ARGUMENT, each.call, "{}"),
            bad("another version", HETCOMM_UNSUPPORTED, each.call, other_version),
            bad("another version with a new field", HETCOMM_UNSUPPORTED, each.call,
                changed(other_version, "{", "{\"colour\": 3, ")),
            bad("an unknown field", HETCOMM_INVALID_ARGUMENT, each.call,
                changed(good, "{", "{\"colour\": 3, ")),
            bad("too deep", HETCOMM_INVALID_ARGUMENT, each.call, std::string(1u << 20, '[')),
        },
        hetcomm_plan_last_error);
  }
}

TEST(BadPlan, TruncatedDocumentsAreRefused) {
  for (const Function& each : functions()) {
    const std::string whole = each.document.substr(0, each.document.rfind('}') + 1);
    for (size_t length = 0; length < whole.size(); ++length) {
      size_t size = 0;
      EXPECT_EQ(each.call(whole.substr(0, length).c_str(), HETCOMM_PLAN_TEXT, 0, nullptr, &size),
                HETCOMM_INVALID_ARGUMENT)
          << each.name << " of " << length << " bytes";
    }
  }
}

// A changed document may be a valid one. It ends with success or with a status of its own, and the
// same document ends alike twice.
TEST(BadPlan, CorruptedDocumentsGiveTheSameStatusTwice) {
  constexpr int kRounds = 5000;
  std::mt19937 random(1);
  for (const Function& each : functions()) {
    int refused = 0;
    for (int round = 0; round < kRounds; ++round) {
      std::string text = each.document;
      for (uint64_t changes = random() % 3 + 1; changes > 0; --changes) {
        constexpr char kBytes[] = "0123456789-[]{},:\"ex .\x80";
        text[random() % text.size()] = kBytes[random() % (sizeof(kBytes) - 1)];
      }
      size_t sizes[2] = {};
      hetcomm_status_t statuses[2];
      for (int i = 0; i < 2; ++i) {
        statuses[i] = each.call(text.c_str(), HETCOMM_PLAN_TEXT, 0, nullptr, &sizes[i]);
      }
      EXPECT_EQ(statuses[0], statuses[1]) << text;
      EXPECT_EQ(sizes[0], sizes[1]) << text;
      EXPECT_NE(statuses[0], HETCOMM_INTERNAL) << hetcomm_plan_last_error() << ": " << text;
      refused += statuses[0] != HETCOMM_OK;
    }
    EXPECT_GT(refused, kRounds / 4) << each.name;
  }
}

TEST(BadPlan, InvalidLayoutsAreRefused) {
  const auto layout = [](const char* what, const std::string& fields) {
    return bad(what, HETCOMM_INVALID_ARGUMENT, hetcomm_draft_layout,
               R"({"format": "hetcomm layout", "version": 1, )" + fields + "}");
  };
  const auto parts = [&](const char* what, const std::string& list) {
    return layout(what, R"("shape": [4], "parts": [)" + list + "]");
  };
  const auto mesh = [&](const char* what, const std::string& fields) {
    return layout(what, R"("shape": [4], "mesh": {)" + fields + "}");
  };
  const auto activations = [&](const char* what, const std::string& fields) {
    return layout(what,
                  R"("activations": {"batch": 2, "sequence": 4, "hidden": 8, )" + fields + "}");
  };
  expect_refused(
      {
          layout("nothing", R"("shape": [4])"),
          layout("two kinds", R"("shape": [4], "parts": [], "mesh": {})"),
          layout("no shape", R"("parts": [])"),
          layout("an empty shape", R"("shape": [], "parts": [])"),
          layout("nine dimensions", R"("shape": [1, 1, 1, 1, 1, 1, 1, 1, 1], "parts": [])"),
          parts("a hole", R"({"rank": 0, "box": [[0, 3]]})"),
          parts("an overlap", R"({"rank": 0, "box": [[0, 4]]}, {"rank": 1, "box": [[3, 4]]})"),
          parts("a negative rank", R"({"rank": -1, "box": [[0, 4]]})"),
          parts("a rank beyond 2^31", R"({"rank": 2147483648, "box": [[0, 4]]})"),
          parts("no rank", R"({"box": [[0, 4]]})"),
          parts("no box", R"({"rank": 0})"),
          parts("too few dimensions", R"({"rank": 0, "box": []})"),
          parts("too many dimensions", R"({"rank": 0, "box": [[0, 4], [0, 1]]})"),
          parts("a range of three", R"({"rank": 0, "box": [[0, 4, 5]]})"),
          parts("a range of texts", R"({"rank": 0, "box": [["0", "4"]]})"),
          parts("a range that ends first", R"({"rank": 0, "box": [[4, 0]]})"),
          parts("a fraction", R"({"rank": 0, "box": [[0, 4.5]]})"),
          parts("two strides", R"({"rank": 0, "box": [[0, 4]], "strides": [1, 1]})"),
          parts("a stride of 0", R"({"rank": 0, "box": [[0, 4]], "strides": [0]})"),
          layout("no terms",
                 R"("shape": [4], "terms": 0, "parts": [{"rank": 0, "box": [[0, 4]]}])"),
          layout("2^32 - 1 terms",
                 R"("shape": [4], "terms": 4294967295, "parts": [{"rank": 0, "box": [[0, 4]]}])"),
          mesh("no ranks", R"("axes": [2], "placements": [{"kind": "shard", "dimension": 0}])"),
          mesh("no placements", R"("axes": [2], "ranks": [0, 1])"),
          mesh("an unknown placement",
               R"("axes": [2], "ranks": [0, 1], "placements": [{"kind": "Shard"}])"),
          mesh("too few ranks",
               R"("axes": [2], "ranks": [0], "placements": [{"kind": "shard", "dimension": 0}])"),
          mesh("more ranks than 2^64",
               R"("axes": [4294967296, 4294967296], "ranks": [0], "placements":
                  [{"kind": "replicate"}, {"kind": "replicate"}])"),
          mesh(
              "a dimension that is not there",
              R"("axes": [2], "ranks": [0, 1], "placements": [{"kind": "shard", "dimension": 1}])"),
          mesh("a split that is not there",
               R"("axes": [2], "ranks": [0, 1], "placements": [{"kind": "strided", "split": 0}])"),
          mesh("no dimension",
               R"("axes": [2], "ranks": [0, 1], "placements": [{"kind": "shard"}])"),
          mesh("a dimension of a replica",
               R"("axes": [2], "ranks": [0, 1], "placements":
                  [{"kind": "replicate", "dimension": 0}])"),
          mesh("sizes beyond 2^64",
               R"("axes": [2], "ranks": [0, 1], "placements": [{"kind": "shard", "dimension": 0,
                  "sizes": [18446744073709551615, 5]}])"),
          mesh("sizes of a replica", R"("axes": [2], "ranks": [0, 1], "placements":
                                        [{"kind": "replicate", "sizes": [1, 3]}])"),
          activations("no ranks", R"("data": 2)"),
          activations("another number of ranks", R"("data": 2, "ranks": [0])"),
          activations("a degree of 0", R"("data": 0, "ranks": [0])"),
          activations("an unknown order", R"("order": "dcx", "ranks": [0])"),
          activations("a zigzag that is a number", R"("zigzag": 1, "ranks": [0])"),
      },
      hetcomm_plan_last_error);
  expect_refused(
      {bad("a picture", HETCOMM_UNSUPPORTED, hetcomm_draft_layout, kLayout, HETCOMM_PLAN_SVG)},
      hetcomm_plan_last_error);
}

TEST(BadPlan, InvalidReshardQuestionsAreRefused) {
  const auto question = [](const char* what, hetcomm_status_t expected, const std::string& from,
                           const std::string& to) {
    return bad(what, expected, hetcomm_draft_reshard, changed(kQuestion, from, to));
  };
  const std::string model = answer(hetcomm_links_infer, kMeasurements, HETCOMM_PLAN_JSON);
  const auto links = [&](const char* what, hetcomm_status_t expected, const std::string& fields) {
    return question(what, expected, "\"prove\": true",
                    R"("prove": true, "links": {"model": )" + model + fields + "}");
  };
  expect_refused(
      {
          question("no tensors", HETCOMM_INVALID_ARGUMENT, R"("tensors": [{)",
                   R"("tensors": [], "x": [{)"),
          question("an unknown layout", HETCOMM_INVALID_ARGUMENT, R"("source": "rows")",
                   R"("source": "planes")"),
          question("an unknown type", HETCOMM_INVALID_ARGUMENT, "float32", "float31"),
          question("an unknown strategy", HETCOMM_INVALID_ARGUMENT, "direct", "straight"),
          question("a proof that is a number", HETCOMM_INVALID_ARGUMENT, "true", "1"),
          question("types that do not convert", HETCOMM_INVALID_ARGUMENT, R"("type": "float32")",
                   R"("type": "float32", "destination_type": "int8")"),
          question("a layout of another version", HETCOMM_UNSUPPORTED, R"("rows": {)",
                   R"("rows": {"format": "hetcomm layout", "version": 2, )"),
          question("a document that is no layout", HETCOMM_INVALID_ARGUMENT, R"("rows": {)",
                   R"("rows": {"format": "hetcomm link model", "version": 1, )"),
          question("another shape", HETCOMM_INVALID_ARGUMENT, R"("columns": {"shape": [4, 6])",
                   R"("columns": {"shape": [4, 8])"),
          links("no hosts", HETCOMM_OUT_OF_RANGE, ""),
          links("too few hosts", HETCOMM_OUT_OF_RANGE, R"(, "hosts": ["a", "a", "b"])"),
          links("an unknown host", HETCOMM_NOT_FOUND, R"(, "hosts": ["a", "a", "b", "c"])"),
          links("an unknown NIC", HETCOMM_NOT_FOUND,
                R"(, "hosts": ["a", "a", "b", "b"], "nics": ["", "", "", "eth7"])"),
          links("another number of NICs", HETCOMM_INVALID_ARGUMENT,
                R"(, "hosts": ["a", "a", "b", "b"], "nics": [""])"),
          links("hosts that are numbers", HETCOMM_INVALID_ARGUMENT, R"(, "hosts": [0, 0, 1, 1])"),
      },
      hetcomm_plan_last_error);
}

TEST(BadPlan, InvalidPlansAreRefused) {
  const std::string good = answer(hetcomm_draft_reshard, kQuestion, HETCOMM_PLAN_JSON);
  const auto plan = [&](const char* what, const std::string& from, const std::string& to) {
    return bad(what, HETCOMM_INVALID_ARGUMENT, hetcomm_draft_draw, changed(good, from, to));
  };
  expect_refused({plan("no layouts", "\"layouts\"", "\"resources\""),
                  plan("a rank that holds nothing", "\"from\": 0", "\"from\": 9"),
                  plan("an unknown strategy", "direct", "dir\\u001bect"),
                  plan("no strategy", "\"strategy\": \"direct\",", ""),
                  plan("no size of elements", "\"element_bytes\": 4,", ""),
                  plan("an element of 2^40 bytes", "\"element_bytes\": 4",
                       "\"element_bytes\": 1099511627776")},
                 hetcomm_plan_last_error);
  // Its text tells the shape, and not only that nobody holds such elements.
  const std::string beyond = changed(good, "\"box\": [\n      [\n       0,\n       2",
                                     "\"box\": [\n      [\n       0,\n       5");
  size_t size = 0;
  EXPECT_EQ(hetcomm_draft_draw(beyond.c_str(), HETCOMM_PLAN_TEXT, 0, nullptr, &size),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_NE(std::string(hetcomm_plan_last_error()).find("reaches beyond the shape"),
            std::string::npos)
      << hetcomm_plan_last_error();
  expect_refused(
      {bad("JSON", HETCOMM_UNSUPPORTED, hetcomm_draft_draw, good, HETCOMM_PLAN_JSON),
       bad("a picture of two tensors", HETCOMM_UNSUPPORTED, hetcomm_draft_draw,
           "[" + good + "," + good + "]", HETCOMM_PLAN_SVG),
       bad("a picture of none", HETCOMM_UNSUPPORTED, hetcomm_draft_draw, "[]", HETCOMM_PLAN_SVG)},
      hetcomm_plan_last_error);
}

// Short documents that would make very much.
TEST(BadPlan, ShortDocumentsThatExpandTooFarAreRefused) {
  std::string placements;
  std::string ranks;
  for (int i = 0; i < 8; ++i) {
    placements += std::string(i > 0 ? "," : "") +
                  R"({"kind": "strided", "split": 8, "dimension": )" + std::to_string(i) + "}";
  }
  for (int i = 0; i < 256; ++i) ranks += (i > 0 ? "," : "") + std::to_string(i);
  const std::string wide =
      R"({"format": "hetcomm layout", "version": 1, "shape": [16,16,16,16,16,16,16,16],
          "mesh": {"axes": [2,2,2,2,2,2,2,2], "ranks": [)" +
      ranks + R"(], "placements": [)" + placements + "]}}";
  const std::string deep =
      R"({"format": "hetcomm layout", "version": 1, "shape": [240000],
          "mesh": {"axes": [2, 2], "ranks": [0, 1, 2, 3], "uneven": "ceil", "placements": [
            {"kind": "strided", "dimension": 0, "split": 60000},
            {"kind": "strided", "dimension": 0, "split": 60000}]}})";
  const std::string name(1000, 'n');
  const std::string named =
      R"({"format": "hetcomm reshard question", "version": 1, "layouts": {")" + name +
      R"(": {}}, "tensors": []})";
  expect_refused(
      {bad("2^24 boxes for each rank", HETCOMM_INVALID_ARGUMENT, hetcomm_draft_layout, wide),
       bad("a long name", HETCOMM_INVALID_ARGUMENT, hetcomm_draft_reshard, named)},
      hetcomm_plan_last_error);
  size_t size = 0;
  EXPECT_EQ(hetcomm_draft_layout(deep.c_str(), HETCOMM_PLAN_TEXT, 0, nullptr, &size), HETCOMM_OK)
      << hetcomm_plan_last_error();
}

TEST(BadPlan, InvalidRateQueriesAreRefused) {
  const std::string model = answer(hetcomm_links_infer, kMeasurements, HETCOMM_PLAN_JSON);
  const auto rates = [](const char* text, size_t count, hetcomm_link_ends_t ends) {
    return [=](Outputs& out) {
      return hetcomm_links_rates(text, count, &ends, out.first<uint64_t>());
    };
  };
  const hetcomm_link_ends_t good{"a", nullptr, "b", nullptr};
  expect_refused(
      {
          {"no model", HETCOMM_INVALID_ARGUMENT, rates(nullptr, 1, good)},
          {"no such model", HETCOMM_INVALID_ARGUMENT, rates("{", 1, good)},
          {"too many", HETCOMM_INVALID_ARGUMENT, rates(model.c_str(), 65537, good)},
          {"no host", HETCOMM_INVALID_ARGUMENT,
           rates(model.c_str(), 1, {nullptr, nullptr, "b", nullptr})},
          {"unknown host", HETCOMM_NOT_FOUND,
           rates(model.c_str(), 1, {"a", nullptr, "c", nullptr})},
          {"unknown NIC", HETCOMM_NOT_FOUND, rates(model.c_str(), 1, {"a", "eth7", "b", nullptr})},
          {"no transfers", HETCOMM_INVALID_ARGUMENT,
           [&](Outputs& out) {
             return hetcomm_links_rates(model.c_str(), 1, nullptr, out.first<uint64_t>());
           }},
          {"no rates", HETCOMM_INVALID_ARGUMENT,
           [&](Outputs&) { return hetcomm_links_rates(model.c_str(), 1, &good, nullptr); }},
      },
      hetcomm_plan_last_error);
}

TEST(BadPlan, VersionMatchesTheLibraryAndErrorsNameTheLine) {
  EXPECT_STREQ(hetcomm_plan_version_string(), hetcomm_version_string());
  ASSERT_EQ(hetcomm_draft_layout("{", 0, 0, nullptr, nullptr), HETCOMM_INVALID_ARGUMENT);
  EXPECT_NE(std::string(hetcomm_plan_last_error()).find("line 1"), std::string::npos)
      << hetcomm_plan_last_error();
}

}  // namespace
}  // namespace hetcomm_test
