// SVG pictures: elements keep their order, numbers are short and never "-0", and text is escaped.
#include "src/present/svg.h"

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hetcomm::present {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Svg, NumbersHaveAtMostOneDecimal) {
  EXPECT_EQ(pixels(12), "12");
  EXPECT_EQ(pixels(12.26), "12.3");
  EXPECT_EQ(pixels(-0.04), "0");
  EXPECT_EQ(pixels(-1.5), "-1.5");
  EXPECT_EQ(pixels(123456), "123456");
}

TEST(Svg, ElementsAppearInCallOrder) {
  Svg svg(100, 50.5, 12, "title");
  svg.rectangle(1, 2, 3, 4, R"(fill="red")", "hint");
  svg.line(1, 2, 3.25, 4, R"(stroke="red")");
  svg.text(5, 6, "words");
  svg.upright_text(7, 8, "up", R"(fill="#555")");
  svg.shape("circle", R"(cx="1" cy="2" r="3")");
  const std::string picture = std::move(svg).take();
  EXPECT_THAT(picture,
              StartsWith(R"(<svg xmlns="http://www.w3.org/2000/svg" width="100" height="50.5" )"
                         R"(viewBox="0 0 100 50.5")"));
  EXPECT_THAT(picture, HasSubstr("<title>title</title>"));
  EXPECT_THAT(
      picture,
      EndsWith(R"svg(<rect x="1" y="2" width="3" height="4" fill="red"><title>hint</title></rect>
<line x1="1" y1="2" x2="3.3" y2="4" stroke="red"/>
<text x="5" y="6">words</text>
<text transform="translate(7 8) rotate(-90)" fill="#555">up</text>
<circle cx="1" cy="2" r="3"/>
</svg>
)svg"));
}

TEST(Svg, TextAndHintsAreEscaped) {
  Svg svg(1, 1, 12, "<a&\"b\">");
  svg.text(0, 0, "</text><script>");
  svg.line(0, 0, 1, 1, "", "x<y");
  const std::string picture = std::move(svg).take();
  EXPECT_THAT(picture, HasSubstr("<title>&lt;a&amp;&quot;b&quot;&gt;</title>"));
  EXPECT_THAT(picture, HasSubstr("&lt;/text&gt;&lt;script&gt;"));
  EXPECT_THAT(picture, HasSubstr("<title>x&lt;y</title>"));
  EXPECT_THAT(picture, Not(HasSubstr("<script>")));
}

}  // namespace
}  // namespace hetcomm::present
