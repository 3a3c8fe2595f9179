// Text from other parties: terminal control characters and invalid UTF-8 are made visible, and all
// other characters stay unchanged. Durations are written with a suitable unit.
#include "src/base/text.h"

#include <string>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

TEST(Printable, OrdinaryTextIsUnchanged) {
  for (const char* text :
       {"", "rank 3 is lost: \"why\"", "gr\u00fc\u00df \u4e2d\u6587 \U0001f600"}) {
    EXPECT_EQ(printable(text), text);
    EXPECT_EQ(printable_lines(text), text);
  }
}

TEST(Printable, ControlCharactersAreEscaped) {
  EXPECT_EQ(printable("a\x1b]0;title\x07"), "a\\x1b]0;title\\x07");
  EXPECT_EQ(printable("one\ntwo\r\t"), "one\\x0atwo\\x0d\\x09");
  EXPECT_EQ(printable(std::string_view("\0x", 2)), "\\x00x");
  EXPECT_EQ(printable("\x7f"), "\\x7f");
  // The control sequence introducer of Latin-1, as UTF-8.
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J");
  EXPECT_EQ(printable_lines("one\ntwo\x1b"), "one\ntwo\\x1b");
}

TEST(Printable, InvalidUtf8IsEscaped) {
  EXPECT_EQ(printable("\x9b"), "\\x9b");
  EXPECT_EQ(printable("\xc3"), "\\xc3");
  EXPECT_EQ(printable("\xc3("), "\\xc3(");
  EXPECT_EQ(printable("\xc1\x9b"), "\\xc1\\x9b");           // an overlong encoding
  EXPECT_EQ(printable("\xe0\x82\x9b"), "\\xe0\\x82\\x9b");  // also overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
}

TEST(Durations, ArePrintedInASuitableUnit) {
  constexpr uint64_t kMs = 1'000'000;
  EXPECT_EQ(duration_text(3'000 * kMs), "3 s");
  EXPECT_EQ(duration_text(300'000 * kMs), "300 s");
  EXPECT_EQ(duration_text(2'600 * kMs), "2.6 s");
  EXPECT_EQ(duration_text(500 * kMs), "500 ms");
  EXPECT_EQ(duration_text(1'500'000), "1.5 ms");
  EXPECT_EQ(duration_text(40'000), "40 us");
  EXPECT_EQ(duration_text(0), "0 s");
}

TEST(LeadingNumber, IsReadFromTheBeginningOfText) {
  EXPECT_EQ(leading_number("14.0625 Gb/sec (1X FDR)"), 14.0625);
  EXPECT_EQ(leading_number("16.0 GT/s PCIe"), 16);
  EXPECT_EQ(leading_number("16"), 16);
  EXPECT_EQ(leading_number("Unknown"), 0);
  EXPECT_EQ(leading_number(""), 0);
}

}  // namespace
}  // namespace hetcomm
