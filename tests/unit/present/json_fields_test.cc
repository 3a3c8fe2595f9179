// Errors of JSON documents: path, what was expected, and what stands there, short and printable.
#include "src/present/json_fields.h"

#include <string>

#include <gtest/gtest.h>

namespace hetcomm::present {
namespace {

TEST(Shown, ScalarsAreShownAsJsonAndContainersAreSummarized) {
  EXPECT_EQ(shown(Json(-5)), "-5");
  EXPECT_EQ(shown(Json("two")), "\"two\"");
  EXPECT_EQ(shown(Json(nullptr)), "null");
  EXPECT_EQ(shown(Json::parse("[1, 2, 3]")), "a list of 3");
  EXPECT_EQ(shown(Json::parse(R"({"a": 1})")), "an object");
}

TEST(Shown, LongTextsAreShortenedAndInvalidOnesMadePrintable) {
  EXPECT_EQ(shown(Json(std::string(1 << 20, 'x'))), "\"" + std::string(39, 'x') + "...");
  EXPECT_EQ(shown(Json("a\nb\x01")), R"("a\nb\u0001")");
  EXPECT_EQ(shown(Json("\xff")), "\"\xef\xbf\xbd\"");  // the replacement character
}

TEST(Fields, ErrorNamesThePathAndTheValue) {
  const Json json = Json::parse(R"({"ranks": -1, "name": 3, "check": "yes", "items": {}})");
  const auto fault = [&](auto read) {
    Status failure;
    Fields fields(json, "plan", failure);
    read(fields);
    return std::string(failure.text());
  };
  EXPECT_EQ(fault([](Fields& f) { f.number("ranks", 9); }),
            "plan.ranks is no whole number up to 9: -1");
  EXPECT_EQ(fault([](Fields& f) { f.text("name"); }),
            "plan.name is no text of at most 4095 characters: 3");
  EXPECT_EQ(fault([](Fields& f) { f.flag("check"); }), "plan.check is no truth value: \"yes\"");
  EXPECT_EQ(fault([](Fields& f) {
              f.each(
                  "items", [](const Json&, const std::string&) {}, 7);
            }),
            "plan.items is no list of at most 7 elements: an object");
}

}  // namespace
}  // namespace hetcomm::present
