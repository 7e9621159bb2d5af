r"""Words: the words of free text, as codes in a packed row: 0 for none, 1 for an unknown word.

A word is letters, marks and digits side by side, `[\p{L}\p{M}\p{N}]+`, in lower case. Which code
points belong to a word, and the lower case of each, are in one table, of Unicode 15.1.
prepare_data, which has no TensorFlow, reads words by it, and so does the exported graph. With the
tables of a library, such as RE2, ICU or Python's own, the two would differ, and a later version of
the library would silently change the words of a stored model.

The vocabulary has the words that the most rows of train contain. A word of fewer than
`data_options.min_count` rows is unknown in train as well, so the model learns from it, and the
share of unknown words in train is about the share in new data from the same source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from heapq import nsmallest
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import counted, setting
from kfp_tfjob.options.data import DataOptions

from .base import ColumnStatistics, ColumnType, Summary, Tally, TrainValues, Votes, vocabulary_table
from .category import MOST_CODES

NONE, UNKNOWN, FIRST = 0, 1, 2  # packed codes: after the last word, of an unknown word, the rest
MOST_LENGTH = 256  # words of a value that the model gets, unless data_options.words names a length
MOST_BYTES = 1 << 20  # of a value
_DROPPED = 0.5  # of the words, while a model is trained
_USUAL_SHARE = 0.95  # of the rows of train have no more words than the model gets
_MOST_COUNTED = 2_000_000  # different words in memory
_AT_ONCE = 1 << 18  # characters whose words are looked for together
_LONGEST_WORD = 100  # characters; longer ones, such as dumps of bytes, are not counted
_MOST_CLASSES = 20  # with more, words are not counted by class
_MOST_TOP, _MOST_TELLING, _MOST_SHOWN = 10, 10, 5  # words in statistics.json, and in a report
_FEWEST_TELLING = 5  # rows of a word that tells classes apart
_DISTANCE = 3.0  # standard deviations between the log odds of a word in a class and in the others
_SEPARATOR = 1 << 21  # in place of a distance, of a code point that is in no word
_BLANK, _LINE_END, _BLOCK = ord(" "), ord("\n"), 256
_BLANKS = np.array([*map(ord, " \t\n\v\f\r")], np.uint32)
SENTENCE, LONG_SENTENCE = "sentence", "long sentence"
_FEWEST_VALUES = 20  # of a column, to infer that it is free text
_FEWEST_WORDS = 3  # of a sentence
_JUDGED = 200  # characters at the beginning of a value that decide whether it is a sentence
_ADDRESS_WORDS = 12  # a postal address has no more
# Addresses of the web and of e-mail, dates and times are no words of a sentence.
_NO_WORDS = r"[A-Za-z][A-Za-z0-9+.-]*://\S*|www\.\S+|\S+@\S+|[0-9]+([/.:-][0-9]+)+"
_PATH = (  # /data/a b; C:\data; a/b/c; a b/c.jpg; but not he/she and/or
    r"^(/|~/|\.{1,2}[/\\]|\\\\|[A-Za-z]:[/\\])|\S[/\\]\S+[/\\]\S|[/\\].*\.[A-Za-z0-9]{1,5}$"
)
_URL_OF_BLANKS = r"^[A-Za-z][A-Za-z0-9+.-]*://.*\s\S*/\S"  # https://example.org/a b/c
_LETTER = r"[A-Za-z\x{80}-\x{10FFFF}]"  # compiles in a hundredth of the time of \p{L}
_HOUSE = (  # 5 Main Street; Rue 5
    rf"^[0-9]+ ?[A-Za-z]?,? +{_LETTER}|{_LETTER}\.?,? +[0-9]+ ?[A-Za-z]?(,|$)"
)

# The code points of words, of Unicode 15.1: categories L, M and N, in hexadecimal.
_IN_WORDS = """
30-39 41-5A 61-7A AA B2-B3 B5 B9-BA BC-BE C0-D6 D8-F6 F8-2C1 2C6-2D1 2E0-2E4 2EC 2EE 300-374
376-377 37A-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5 3F7-481 483-52F 531-556 559 560-588 591-5BD
5BF 5C1-5C2 5C4-5C5 5C7 5D0-5EA 5EF-5F2 610-61A 620-669 66E-6D3 6D5-6DC 6DF-6E8 6EA-6FC 6FF
710-74A 74D-7B1 7C0-7F5 7FA 7FD 800-82D 840-85B 860-86A 870-887 889-88E 898-8E1 8E3-963 966-96F
971-983 985-98C 98F-990 993-9A8 9AA-9B0 9B2 9B6-9B9 9BC-9C4 9C7-9C8 9CB-9CE 9D7 9DC-9DD 9DF-9E3
9E6-9F1 9F4-9F9 9FC 9FE A01-A03 A05-A0A A0F-A10 A13-A28 A2A-A30 A32-A33 A35-A36 A38-A39 A3C
A3E-A42 A47-A48 A4B-A4D A51 A59-A5C A5E A66-A75 A81-A83 A85-A8D A8F-A91 A93-AA8 AAA-AB0 AB2-AB3
AB5-AB9 ABC-AC5 AC7-AC9 ACB-ACD AD0 AE0-AE3 AE6-AEF AF9-AFF B01-B03 B05-B0C B0F-B10 B13-B28
B2A-B30 B32-B33 B35-B39 B3C-B44 B47-B48 B4B-B4D B55-B57 B5C-B5D B5F-B63 B66-B6F B71-B77 B82-B83
B85-B8A B8E-B90 B92-B95 B99-B9A B9C B9E-B9F BA3-BA4 BA8-BAA BAE-BB9 BBE-BC2 BC6-BC8 BCA-BCD BD0
BD7 BE6-BF2 C00-C0C C0E-C10 C12-C28 C2A-C39 C3C-C44 C46-C48 C4A-C4D C55-C56 C58-C5A C5D C60-C63
C66-C6F C78-C7E C80-C83 C85-C8C C8E-C90 C92-CA8 CAA-CB3 CB5-CB9 CBC-CC4 CC6-CC8 CCA-CCD CD5-CD6
CDD-CDE CE0-CE3 CE6-CEF CF1-CF3 D00-D0C D0E-D10 D12-D44 D46-D48 D4A-D4E D54-D63 D66-D78 D7A-D7F
D81-D83 D85-D96 D9A-DB1 DB3-DBB DBD DC0-DC6 DCA DCF-DD4 DD6 DD8-DDF DE6-DEF DF2-DF3 E01-E3A
E40-E4E E50-E59 E81-E82 E84 E86-E8A E8C-EA3 EA5 EA7-EBD EC0-EC4 EC6 EC8-ECE ED0-ED9 EDC-EDF F00
F18-F19 F20-F33 F35 F37 F39 F3E-F47 F49-F6C F71-F84 F86-F97 F99-FBC FC6 1000-1049 1050-109D
10A0-10C5 10C7 10CD 10D0-10FA 10FC-1248 124A-124D 1250-1256 1258 125A-125D 1260-1288 128A-128D
1290-12B0 12B2-12B5 12B8-12BE 12C0 12C2-12C5 12C8-12D6 12D8-1310 1312-1315 1318-135A 135D-135F
1369-137C 1380-138F 13A0-13F5 13F8-13FD 1401-166C 166F-167F 1681-169A 16A0-16EA 16EE-16F8
1700-1715 171F-1734 1740-1753 1760-176C 176E-1770 1772-1773 1780-17D3 17D7 17DC-17DD 17E0-17E9
17F0-17F9 180B-180D 180F-1819 1820-1878 1880-18AA 18B0-18F5 1900-191E 1920-192B 1930-193B
1946-196D 1970-1974 1980-19AB 19B0-19C9 19D0-19DA 1A00-1A1B 1A20-1A5E 1A60-1A7C 1A7F-1A89
1A90-1A99 1AA7 1AB0-1ACE 1B00-1B4C 1B50-1B59 1B6B-1B73 1B80-1BF3 1C00-1C37 1C40-1C49 1C4D-1C7D
1C80-1C88 1C90-1CBA 1CBD-1CBF 1CD0-1CD2 1CD4-1CFA 1D00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D
1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3
1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2070-2071 2074-2079 207F-2089 2090-209C 20D0-20F0 2102
2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2139 213C-213F 2145-2149 214E
2150-2189 2460-249B 24EA-24FF 2776-2793 2C00-2CE4 2CEB-2CF3 2CFD 2D00-2D25 2D27 2D2D 2D30-2D67
2D6F 2D7F-2D96 2DA0-2DA6 2DA8-2DAE 2DB0-2DB6 2DB8-2DBE 2DC0-2DC6 2DC8-2DCE 2DD0-2DD6 2DD8-2DDE
2DE0-2DFF 2E2F 3005-3007 3021-302F 3031-3035 3038-303C 3041-3096 3099-309A 309D-309F 30A1-30FA
30FC-30FF 3105-312F 3131-318E 3192-3195 31A0-31BF 31F0-31FF 3220-3229 3248-324F 3251-325F
3280-3289 32B1-32BF 3400-4DBF 4E00-A48C A4D0-A4FD A500-A60C A610-A62B A640-A672 A674-A67D
A67F-A6F1 A717-A71F A722-A788 A78B-A7CA A7D0-A7D1 A7D3 A7D5-A7D9 A7F2-A827 A82C A830-A835
A840-A873 A880-A8C5 A8D0-A8D9 A8E0-A8F7 A8FB A8FD-A92D A930-A953 A960-A97C A980-A9C0 A9CF-A9D9
A9E0-A9FE AA00-AA36 AA40-AA4D AA50-AA59 AA60-AA76 AA7A-AAC2 AADB-AADD AAE0-AAEF AAF2-AAF6
AB01-AB06 AB09-AB0E AB11-AB16 AB20-AB26 AB28-AB2E AB30-AB5A AB5C-AB69 AB70-ABEA ABEC-ABED
ABF0-ABF9 AC00-D7A3 D7B0-D7C6 D7CB-D7FB F900-FA6D FA70-FAD9 FB00-FB06 FB13-FB17 FB1D-FB28
FB2A-FB36 FB38-FB3C FB3E FB40-FB41 FB43-FB44 FB46-FBB1 FBD3-FD3D FD50-FD8F FD92-FDC7 FDF0-FDFB
FE00-FE0F FE20-FE2F FE70-FE74 FE76-FEFC FF10-FF19 FF21-FF3A FF41-FF5A FF66-FFBE FFC2-FFC7
FFCA-FFCF FFD2-FFD7 FFDA-FFDC 10000-1000B 1000D-10026 10028-1003A 1003C-1003D 1003F-1004D
10050-1005D 10080-100FA 10107-10133 10140-10178 1018A-1018B 101FD 10280-1029C 102A0-102D0
102E0-102FB 10300-10323 1032D-1034A 10350-1037A 10380-1039D 103A0-103C3 103C8-103CF 103D1-103D5
10400-1049D 104A0-104A9 104B0-104D3 104D8-104FB 10500-10527 10530-10563 10570-1057A 1057C-1058A
1058C-10592 10594-10595 10597-105A1 105A3-105B1 105B3-105B9 105BB-105BC 10600-10736 10740-10755
10760-10767 10780-10785 10787-107B0 107B2-107BA 10800-10805 10808 1080A-10835 10837-10838 1083C
1083F-10855 10858-10876 10879-1089E 108A7-108AF 108E0-108F2 108F4-108F5 108FB-1091B 10920-10939
10980-109B7 109BC-109CF 109D2-10A03 10A05-10A06 10A0C-10A13 10A15-10A17 10A19-10A35 10A38-10A3A
10A3F-10A48 10A60-10A7E 10A80-10A9F 10AC0-10AC7 10AC9-10AE6 10AEB-10AEF 10B00-10B35 10B40-10B55
10B58-10B72 10B78-10B91 10BA9-10BAF 10C00-10C48 10C80-10CB2 10CC0-10CF2 10CFA-10D27 10D30-10D39
10E60-10E7E 10E80-10EA9 10EAB-10EAC 10EB0-10EB1 10EFD-10F27 10F30-10F54 10F70-10F85 10FB0-10FCB
10FE0-10FF6 11000-11046 11052-11075 1107F-110BA 110C2 110D0-110E8 110F0-110F9 11100-11134
11136-1113F 11144-11147 11150-11173 11176 11180-111C4 111C9-111CC 111CE-111DA 111DC 111E1-111F4
11200-11211 11213-11237 1123E-11241 11280-11286 11288 1128A-1128D 1128F-1129D 1129F-112A8
112B0-112EA 112F0-112F9 11300-11303 11305-1130C 1130F-11310 11313-11328 1132A-11330 11332-11333
11335-11339 1133B-11344 11347-11348 1134B-1134D 11350 11357 1135D-11363 11366-1136C 11370-11374
11400-1144A 11450-11459 1145E-11461 11480-114C5 114C7 114D0-114D9 11580-115B5 115B8-115C0
115D8-115DD 11600-11640 11644 11650-11659 11680-116B8 116C0-116C9 11700-1171A 1171D-1172B
11730-1173B 11740-11746 11800-1183A 118A0-118F2 118FF-11906 11909 1190C-11913 11915-11916
11918-11935 11937-11938 1193B-11943 11950-11959 119A0-119A7 119AA-119D7 119DA-119E1 119E3-119E4
11A00-11A3E 11A47 11A50-11A99 11A9D 11AB0-11AF8 11C00-11C08 11C0A-11C36 11C38-11C40 11C50-11C6C
11C72-11C8F 11C92-11CA7 11CA9-11CB6 11D00-11D06 11D08-11D09 11D0B-11D36 11D3A 11D3C-11D3D
11D3F-11D47 11D50-11D59 11D60-11D65 11D67-11D68 11D6A-11D8E 11D90-11D91 11D93-11D98 11DA0-11DA9
11EE0-11EF6 11F00-11F10 11F12-11F3A 11F3E-11F42 11F50-11F59 11FB0 11FC0-11FD4 12000-12399
12400-1246E 12480-12543 12F90-12FF0 13000-1342F 13440-13455 14400-14646 16800-16A38 16A40-16A5E
16A60-16A69 16A70-16ABE 16AC0-16AC9 16AD0-16AED 16AF0-16AF4 16B00-16B36 16B40-16B43 16B50-16B59
16B5B-16B61 16B63-16B77 16B7D-16B8F 16E40-16E96 16F00-16F4A 16F4F-16F87 16F8F-16F9F 16FE0-16FE1
16FE3-16FE4 16FF0-16FF1 17000-187F7 18800-18CD5 18D00-18D08 1AFF0-1AFF3 1AFF5-1AFFB 1AFFD-1AFFE
1B000-1B122 1B132 1B150-1B152 1B155 1B164-1B167 1B170-1B2FB 1BC00-1BC6A 1BC70-1BC7C 1BC80-1BC88
1BC90-1BC99 1BC9D-1BC9E 1CF00-1CF2D 1CF30-1CF46 1D165-1D169 1D16D-1D172 1D17B-1D182 1D185-1D18B
1D1AA-1D1AD 1D242-1D244 1D2C0-1D2D3 1D2E0-1D2F3 1D360-1D378 1D400-1D454 1D456-1D49C 1D49E-1D49F
1D4A2 1D4A5-1D4A6 1D4A9-1D4AC 1D4AE-1D4B9 1D4BB 1D4BD-1D4C3 1D4C5-1D505 1D507-1D50A 1D50D-1D514
1D516-1D51C 1D51E-1D539 1D53B-1D53E 1D540-1D544 1D546 1D54A-1D550 1D552-1D6A5 1D6A8-1D6C0
1D6C2-1D6DA 1D6DC-1D6FA 1D6FC-1D714 1D716-1D734 1D736-1D74E 1D750-1D76E 1D770-1D788 1D78A-1D7A8
1D7AA-1D7C2 1D7C4-1D7CB 1D7CE-1D7FF 1DA00-1DA36 1DA3B-1DA6C 1DA75 1DA84 1DA9B-1DA9F 1DAA1-1DAAF
1DF00-1DF1E 1DF25-1DF2A 1E000-1E006 1E008-1E018 1E01B-1E021 1E023-1E024 1E026-1E02A 1E030-1E06D
1E08F 1E100-1E12C 1E130-1E13D 1E140-1E149 1E14E 1E290-1E2AE 1E2C0-1E2F9 1E4D0-1E4F9 1E7E0-1E7E6
1E7E8-1E7EB 1E7ED-1E7EE 1E7F0-1E7FE 1E800-1E8C4 1E8C7-1E8D6 1E900-1E94B 1E950-1E959 1EC71-1ECAB
1ECAD-1ECAF 1ECB1-1ECB4 1ED01-1ED2D 1ED2F-1ED3D 1EE00-1EE03 1EE05-1EE1F 1EE21-1EE22 1EE24 1EE27
1EE29-1EE32 1EE34-1EE37 1EE39 1EE3B 1EE42 1EE47 1EE49 1EE4B 1EE4D-1EE4F 1EE51-1EE52 1EE54 1EE57
1EE59 1EE5B 1EE5D 1EE5F 1EE61-1EE62 1EE64 1EE67-1EE6A 1EE6C-1EE72 1EE74-1EE77 1EE79-1EE7C 1EE7E
1EE80-1EE89 1EE8B-1EE9B 1EEA1-1EEA3 1EEA5-1EEA9 1EEAB-1EEBB 1F100-1F10C 1FBF0-1FBF9 20000-2A6DF
2A700-2B739 2B740-2B81D 2B820-2CEA1 2CEB0-2EBE0 2EBF0-2EE5D 2F800-2FA1D 30000-3134A 31350-323AF
E0100-E01EF
"""
# START-END:STEP and the distance from there to the lower case.
_LOWER_CASE = """
41-5A+32 C0-D6+32 D8-DE+32 100-12E:2+1 130-199 132-136:2+1 139-147:2+1 14A-176:2+1 178-121
179-17D:2+1 181+210 182-184:2+1 186+206 187+1 189-18A+205 18B+1 18E+79 18F+202 190+203 191+1
193+205 194+207 196+211 197+209 198+1 19C+211 19D+213 19F+214 1A0-1A4:2+1 1A6+218 1A7+1 1A9+218
1AC+1 1AE+218 1AF+1 1B1-1B2+217 1B3-1B5:2+1 1B7+219 1B8+1 1BC+1 1C4+2 1C5+1 1C7+2 1C8+1 1CA+2
1CB-1DB:2+1 1DE-1EE:2+1 1F1+2 1F2-1F4:2+1 1F6-97 1F7-56 1F8-21E:2+1 220-130 222-232:2+1 23A+10795
23B+1 23D-163 23E+10792 241+1 243-195 244+69 245+71 246-24E:2+1 370-372:2+1 376+1 37F+116 386+38
388-38A+37 38C+64 38E-38F+63 391-3A1+32 3A3-3AB+32 3CF+8 3D8-3EE:2+1 3F4-60 3F7+1 3F9-7 3FA+1
3FD-3FF-130 400-40F+80 410-42F+32 460-480:2+1 48A-4BE:2+1 4C0+15 4C1-4CD:2+1 4D0-52E:2+1
531-556+48 10A0-10C5+7264 10C7+7264 10CD+7264 13A0-13EF+38864 13F0-13F5+8 1C90-1CBA-3008
1CBD-1CBF-3008 1E00-1E94:2+1 1E9E-7615 1EA0-1EFE:2+1 1F08-1F0F-8 1F18-1F1D-8 1F28-1F2F-8
1F38-1F3F-8 1F48-1F4D-8 1F59-1F5F:2-8 1F68-1F6F-8 1F88-1F8F-8 1F98-1F9F-8 1FA8-1FAF-8 1FB8-1FB9-8
1FBA-1FBB-74 1FBC-9 1FC8-1FCB-86 1FCC-9 1FD8-1FD9-8 1FDA-1FDB-100 1FE8-1FE9-8 1FEA-1FEB-112 1FEC-7
1FF8-1FF9-128 1FFA-1FFB-126 1FFC-9 2126-7517 212A-8383 212B-8262 2132+28 2160-216F+16 2183+1
2C00-2C2F+48 2C60+1 2C62-10743 2C63-3814 2C64-10727 2C67-2C6B:2+1 2C6D-10780 2C6E-10749 2C6F-10783
2C70-10782 2C72+1 2C75+1 2C7E-2C7F-10815 2C80-2CE2:2+1 2CEB-2CED:2+1 2CF2+1 A640-A66C:2+1
A680-A69A:2+1 A722-A72E:2+1 A732-A76E:2+1 A779-A77B:2+1 A77D-35332 A77E-A786:2+1 A78B+1 A78D-42280
A790-A792:2+1 A796-A7A8:2+1 A7AA-42308 A7AB-42319 A7AC-42315 A7AD-42305 A7AE-42308 A7B0-42258
A7B1-42282 A7B2-42261 A7B3+928 A7B4-A7C2:2+1 A7C4-48 A7C5-42307 A7C6-35384 A7C7-A7C9:2+1 A7D0+1
A7D6-A7D8:2+1 A7F5+1 FF21-FF3A+32 10400-10427+40 104B0-104D3+40 10570-10594:2+39 10571-10579:2+39
1057D-10589:2+39 1058D-10591:2+39 10595+39 10C80-10CB2+64 118A0-118BF+32 16E40-16E5F+32
1E900-1E921+34
"""


class _Letters(NamedTuple):
    """The table of code points, in blocks of 256; equal blocks are stored once.

    Attributes:
        blocks: (blocks of Unicode,) int32, the index of each in `distances`.
        distances: (different blocks, 256) int32, to the lower case of a code point, or _SEPARATOR.
    """

    blocks: np.ndarray
    distances: np.ndarray


@cache
def letters() -> _Letters:
    """Return the table of code points."""
    distances = np.full(0x110000, _SEPARATOR, np.int32)
    for item in _IN_WORDS.split():
        start, _, end = item.partition("-")
        distances[int(start, 16) : int(end or start, 16) + 1] = 0
    for item in _LOWER_CASE.split():
        at = max(item.rfind("+"), item.rfind("-"))
        span, _, step = item[:at].partition(":")
        start, _, end = span.partition("-")
        distances[int(start, 16) : int(end or start, 16) + 1 : int(step or 1)] = int(item[at:])
    different, blocks = np.unique(distances.reshape(-1, _BLOCK), axis=0, return_inverse=True)
    return _Letters(blocks.reshape(-1).astype(np.int32), different)


def _points_of(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the code points of texts, each with a line end behind it, and where each begins."""
    points = np.frombuffer("\n".join([*texts, ""]).encode("utf-32-le"), np.uint32)
    return points, np.cumsum([0, *(len(text) + 1 for text in texts[:-1])])


def _distances_of(points: np.ndarray) -> np.ndarray:
    """Return the distance of each code point to its lower case, or _SEPARATOR."""
    table = letters()
    return table.distances[table.blocks[points >> 8], points & 255]


def words_of(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the words of each text.

    The arrays take about 30 bytes for each character, so only so many texts are split at a time.
    """
    start = characters = 0
    for at, text in enumerate(texts):
        characters += len(text)
        if characters >= _AT_ONCE:
            yield from _split(texts[start : at + 1])
            start, characters = at + 1, 0
    if start < len(texts):
        yield from _split(texts[start:])


def _split(texts: Sequence[str]) -> list[list[str]]:
    """Return the words of one text or more."""
    points, starts = _points_of(texts)
    distances = _distances_of(points)
    lower = np.where(distances == _SEPARATOR, _BLANK, points.astype(np.int32) + distances)
    lower[np.append(starts[1:], len(points)) - 1] = _LINE_END
    lines = lower.astype("<u4").tobytes().decode("utf-32-le").split("\n")
    return [line.split() for line in lines[:-1]]


def words_in_graph(texts: Any) -> Any:
    """Return the words of (n,) strings as a ragged tensor (n, words)."""
    import tensorflow as tf

    table = letters()
    points = tf.strings.unicode_decode(texts, "UTF-8")
    codes = points.flat_values
    block = tf.gather(tf.constant(table.blocks), codes // _BLOCK)
    distances = tf.constant(table.distances.reshape(-1))
    distance = tf.gather(distances, block * _BLOCK + codes % _BLOCK)
    lower = tf.where(distance == _SEPARATOR, _BLANK, codes + distance)
    return tf.strings.split(tf.strings.unicode_encode(points.with_flat_values(lower), "UTF-8"))


@dataclass
class WordTally(Tally):
    """The words of train, counted by class.

    Attributes:
        classes: The classes; none if words are not counted by class.
        rows: For each class, or in one number, the rows with a value.
        words: For each class, or once, the rows with each word.
        lengths: The rows by their number of words; the last number counts longer ones too.
        dropped: The sum of the rows of each word that was dropped to save memory.
    """

    classes: tuple[str, ...]
    rows: np.ndarray
    words: list[Counter[str]]
    lengths: np.ndarray
    dropped: int = 0

    @classmethod
    def empty(cls, classes: Sequence[str]) -> Self:
        """Return the counts of no rows."""
        by_class = tuple(classes) if len(classes) <= _MOST_CLASSES else ()
        parts = max(len(by_class), 1)
        words: list[Counter[str]] = [Counter() for _ in range(parts)]
        return cls(by_class, np.zeros(parts, np.int64), words, np.zeros(MOST_LENGTH + 1, np.int64))

    def add(self, texts: Sequence[str], codes: np.ndarray, labels: np.ndarray) -> None:
        """Add rows, given the distinct strings, each row's index (-1 if missing) and class."""
        present = codes >= 0
        codes = codes[present]
        classes = labels[present].astype(np.int64) if self.classes else np.zeros_like(codes)
        lengths, distinct = np.zeros(len(texts), np.int64), []
        for at, words in enumerate(words_of(texts)):
            lengths[at] = min(len(words), MOST_LENGTH)
            distinct.append({word for word in words if len(word) <= _LONGEST_WORD})
        self.lengths += np.bincount(lengths[codes], minlength=len(self.lengths))
        self.rows += np.bincount(classes, minlength=len(self.rows))
        for code, number in zip(codes.tolist(), classes.tolist(), strict=True):
            self.words[number].update(distinct[code])
        self._limit()

    def merge(self, part: WordTally) -> None:
        """Add the counts of later rows."""
        self.rows = self.rows + part.rows
        self.lengths = self.lengths + part.lengths
        self.dropped += part.dropped
        for words, added in zip(self.words, part.words, strict=True):
            words.update(added)
        self._limit()

    def _limit(self) -> None:
        """Drop the rarest words while there are too many: those rarer than most of them."""
        while sum(map(len, self.words)) > _MOST_COUNTED:
            totals = self.totals
            counts = np.sort(np.fromiter(totals.values(), np.int64, len(totals)))
            least, usual = int(counts[0]), int(counts[len(counts) // 2])
            limit = max(least, usual - 1)
            self.dropped += int(counts[counts <= limit].sum())
            self.words = [
                Counter({word: rows for word, rows in words.items() if totals[word] > limit})
                for words in self.words
            ]

    @property
    def totals(self) -> Counter[str]:
        """The rows with each word."""
        totals = Counter(self.words[0])
        for words in self.words[1:]:
            totals.update(words)
        return totals

    @property
    def usual_length(self) -> int:
        """The number of words that 95% of the values do not exceed; 1 to MOST_LENGTH."""
        rows = np.cumsum(self.lengths)
        return min(max(int(np.searchsorted(rows, _USUAL_SHARE * rows[-1])), 1), MOST_LENGTH)

    def telling(self, words: Sequence[str]) -> list[tuple[str, str, float, float]]:
        """Return the words whose share differs most between a class and the others.

        Returns:
            Word, class, its share of the rows of this class, and its share of the other rows.
        """
        ranked: list[Any] = []
        counts = np.array([[rows[word] for word in words] for rows in self.words], np.float64)
        in_all = counts.sum(axis=0)
        for name, rows, inside in zip(self.classes, self.rows, counts, strict=False):
            other_rows, outside = self.rows.sum() - rows, in_all - inside
            if not rows or not other_rows:
                continue
            odds = np.log((inside + 0.5) / (rows - inside + 0.5))
            odds -= np.log((outside + 0.5) / (other_rows - outside + 0.5))
            deviation = np.sqrt(1 / (inside + 0.5) + 1 / (outside + 0.5))
            distance = np.where(inside >= _FEWEST_TELLING, odds / deviation, 0)
            for at in np.argsort(-distance, kind="stable")[:_MOST_TELLING].tolist():
                if distance[at] >= _DISTANCE:
                    shares = float(inside[at] / rows), float(outside[at] / other_rows)
                    ranked.append((-distance[at], words[at], name, *shares))
        return [tuple(item[1:]) for item in sorted(ranked)[:_MOST_TELLING]]


@dataclass(frozen=True, kw_only=True)
class WordsStatistics(ColumnStatistics):
    """The words of train.

    Attributes:
        distinct: The different words.
        vocabulary: Those with a code of their own.
        length: The words of a value that the model gets.
        unknown: The share of the other words, each counted once in a row.
        top: The most frequent words with their rows.
        telling: The words that tell the classes apart: word, class, its share of the rows of this
            class, and its share of the other rows.
    """

    distinct: int
    vocabulary: int
    length: int
    unknown: float
    top: list[tuple[str, int]]
    telling: list[tuple[str, str, float, float]]

    @property
    def words(self) -> str:
        """The words that tell the classes apart, or the most frequent ones, as a string."""
        sizes = (
            f"{counted(self.vocabulary, 'word')} of {self.distinct:,} are known,"
            f" {self.length:,} of a value are used, {self.unknown:.1%} are unknown"
        )
        if self.telling:
            shares = [
                f"{word} ({name}: {inside:.1%}, others: {outside:.1%})"
                for word, name, inside, outside in self.telling
            ]
            return f"{sizes}; these tell the classes apart: {', '.join(shares)}"
        most = ", ".join(f"{word} ({count:,})" for word, count in self.top[:_MOST_SHOWN])
        return f"{sizes}; the most frequent: {most}"


@dataclass(frozen=True)
class Words(ColumnType):
    """The words of a text.

    Attributes:
        vocabulary: The words that have a packed code of their own, the most frequent first.
        length: The number of packed codes: words at the beginning of a value.
    """

    vocabulary: tuple[str, ...] = field(kw_only=True)
    length: int = field(kw_only=True)

    kind = "words"
    schema_type = "words"
    learns_from_strings = True
    has_layer = True
    most_bytes = MOST_BYTES
    repeats = False
    written = "a text of any length up to 1 MiB"
    example = "a text of words"
    nouns = ("a text of words", "texts of words")
    about = "free text, of which the model gets the words"
    statistics = WordsStatistics
    # A row counts by 1 + the percentage of its words that are unknown.
    drift_bins = "edges"
    fixed_edges = (1, 11, 26, 51, 76)

    forms = (SENTENCE, LONG_SENTENCE)
    probed_forms = (SENTENCE, LONG_SENTENCE)
    long_forms = (LONG_SENTENCE,)

    def __post_init__(self) -> None:
        """Reject a vocabulary that cannot be one."""
        if self.size > MOST_CODES or self.length < 1:
            raise ValueError(f"{self.name!r} has {self.size:,} codes and {self.length:,} words")
        if "" in self.vocabulary or len(set(self.vocabulary)) < len(self.vocabulary):
            raise ValueError(f"the words of {self.name!r} contain an empty one or a duplicate")

    @classmethod
    def tally(cls, classes: Sequence[str]) -> WordTally:
        """Return the counts of no rows."""
        return WordTally.empty(classes)

    @classmethod
    def fit(cls, name: str, values: TrainValues, options: DataOptions) -> Self:
        """Return the encoding.

        Raises:
            DataError: Fewer than two words of train have a code of their own.
        """
        tally, missing = values.tally, cls.learn_missing(values)
        if not isinstance(tally, WordTally):
            return cls(name, missing, vocabulary=(), length=options.words.length or 1)
        ranked = nsmallest(
            options.words.vocabulary,
            ((-rows, word) for word, rows in tally.totals.items() if rows >= options.min_count),
        )
        if len(ranked) < 2:
            raise DataError(_too_few_words(name, tally, ranked, options))
        length = options.words.length or tally.usual_length
        return cls(name, missing, vocabulary=tuple(word for _, word in ranked), length=length)

    @property
    def size(self) -> int:
        """The number of packed codes."""
        return FIRST + len(self.vocabulary)

    @property
    def group(self) -> Hashable:
        """Columns with as many packed codes are encoded together."""
        return self.length

    @property
    def endings(self) -> tuple[str, ...]:
        """The endings of the names of its packed columns, one for each word."""
        return tuple(f".{number}" for number in range(1, self.length + 1))

    @classmethod
    def tables(cls, columns: Sequence[Self]) -> tuple[Any, ...]:
        """Return the vocabularies."""
        return (vocabulary_table([column.vocabulary for column in columns], FIRST, UNKNOWN),)

    @classmethod
    def graph(cls, columns: Sequence[Self], values: Any, tables: tuple[Any, ...]) -> list[Any]:
        """Return the codes of the words, for all packed columns at once."""
        import tensorflow as tf

        length, count = columns[0].length, len(columns)
        words = words_in_graph(tf.reshape(values, [-1]))[:, :length]
        numbers = tf.constant([f"{number}:" for number in range(count)])
        prefixes = tf.gather(numbers, words.value_rowids() % count)
        codes = tables[0].lookup(tf.strings.join([prefixes, words.flat_values]))
        ragged = words.with_flat_values(tf.cast(codes, tf.float32))
        filled = ragged.to_tensor(shape=[None, length])  # with NONE
        by_word = tf.transpose(tf.reshape(filled, [-1, count, length]), [0, 2, 1])
        return [tf.reshape(by_word, [-1, length * count])]

    @classmethod
    def embed(cls, codes: Any, size: int, width: int) -> Any:
        """Return (batch, width) float32: the mean of the words' embeddings; 0 without a word.

        Training drops half of the words, others in each step.
        """
        import keras

        # Not zeros: they would leave a table whose only feature is text without any gradient,
        # because a ReLU's gradient is 0 at 0.
        table = keras.layers.Embedding(size, width, embeddings_initializer="uniform")
        # Whole words: otherwise a few rare ones identify a training row (Iyyer et al., 2015).
        dropout = keras.layers.Dropout(_DROPPED, noise_shape=(None, codes.shape[1], 1))
        vectors = keras.ops.cast(dropout(table(codes)), "float32")
        present = keras.ops.expand_dims(keras.ops.cast(codes != NONE, "float32"), -1)
        words = keras.ops.maximum(keras.ops.sum(present, axis=1), 1.0)
        return keras.ops.sum(vectors * present, axis=1) / words

    @classmethod
    def example_codes(
        cls, size: int, width: int, rows: int, random: np.random.Generator
    ) -> np.ndarray:
        """Return (rows, width) random codes; 0 after the last word."""
        codes = random.integers(UNKNOWN, size, (rows, width))
        return np.where(np.arange(width) < random.integers(0, width + 1, (rows, 1)), codes, NONE)

    def usual(self, column: ColumnStatistics | None = None) -> str:
        """Return the most frequent words."""
        return " ".join(self.vocabulary[:_MOST_SHOWN])

    @cached_property
    def _word_set(self) -> frozenset[str]:
        return frozenset(self.vocabulary)

    def codes_of(self, texts: Sequence[str]) -> np.ndarray:
        """Return (texts,) int32: 1 + the percentage of words that are unknown, rounded up."""
        vocabulary = self._word_set
        codes = np.ones(len(texts), np.int32)
        for at, words in enumerate(words_of(texts)):
            if unknown := len(words) - sum(map(vocabulary.__contains__, words)):
                codes[at] += -(-100 * unknown // len(words))
        return codes

    def describe(self, column: Summary) -> WordsStatistics:
        """Return how many words there are, the most frequent and the telling ones."""
        tally = column.tally
        assert isinstance(tally, WordTally)
        totals = tally.totals
        rows = sum(totals.values()) + tally.dropped
        known_rows = sum(totals[word] for word in self.vocabulary)
        return WordsStatistics(
            distinct=len(totals),
            vocabulary=len(self.vocabulary),
            length=self.length,
            unknown=(rows - known_rows) / max(rows, 1),
            top=[(word, totals[word]) for word in self.vocabulary[:_MOST_TOP]],
            telling=tally.telling(self.vocabulary),
        )

    @classmethod
    def forms_of(cls, texts: pa.Array, short: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """Return which strings are sentences, and which of them are long."""
        places = np.flatnonzero(pc.count_substring(texts, " ").to_numpy() >= _FEWEST_WORDS - 1)
        if not len(places):
            return []
        are_sentences = np.zeros(len(texts), bool)
        are_sentences[places] = _are_sentences(texts.take(pa.array(places)))
        return [(SENTENCE, are_sentences & short), (LONG_SENTENCE, are_sentences & ~short)]

    @classmethod
    def fits(cls, votes: Votes) -> bool:
        """Return whether most values are sentences that differ, of words that repeat."""
        if votes.total < _FEWEST_VALUES or 2 * votes.of(*cls.forms) <= votes.total:
            return False
        is_varied = votes.distinct is None or 2 * votes.distinct > votes.total
        if not is_varied and 10 * votes.of(LONG_SENTENCE) <= votes.total:
            return False
        rows = [set(words) for words in words_of(list(votes.probes))]
        counts = Counter(word for words in rows for word in words)
        repeated = sum(count for count in counts.values() if count > 1)
        return 2 * repeated > counts.total()


def _are_sentences(texts: pa.Array) -> np.ndarray:
    """Tell which strings have three words, mostly of letters, and are no path or address."""
    beginnings = pc.utf8_slice_codeunits(texts, 0, _JUDGED)
    plain = pc.utf8_trim_whitespace(pc.replace_substring_regex(beginnings, _NO_WORDS, " "))
    # Not with regular expressions: one for the letters of all languages takes milliseconds to
    # compile, which Arrow does at each call, and a block may have few new strings.
    points, starts = _points_of(plain.to_pylist())
    are_in_words = _distances_of(points) != _SEPARATOR
    are_letters = are_in_words & ~((points >= ord("0")) & (points <= ord("9")))
    are_first = are_in_words & ~np.append(False, are_in_words[:-1])
    words = np.add.reduceat(are_first, starts, dtype=np.int64)
    letters_in = np.add.reduceat(are_letters, starts, dtype=np.int64)
    are_others = ~are_letters & ~np.isin(points, _BLANKS)
    other_characters = np.add.reduceat(are_others, starts, dtype=np.int64)
    is_path = pc.or_(
        pc.match_substring_regex(plain, _PATH), pc.match_substring_regex(beginnings, _URL_OF_BLANKS)
    ).to_numpy(zero_copy_only=False)
    has_house = pc.match_substring_regex(plain, _HOUSE).to_numpy(zero_copy_only=False)
    is_address = has_house & (words <= _ADDRESS_WORDS)
    return (words >= _FEWEST_WORDS) & (letters_in > other_characters) & ~is_path & ~is_address


def _too_few_words(
    name: str, tally: WordTally, words: Sequence[tuple[int, str]], options: DataOptions
) -> Problem:
    """Describe a column that yields no vocabulary."""
    rare = len(tally.totals) - len(words)
    received = counted(len(words), "word") + (f" ({words[0][1]!r})" if words else "")
    if rare:
        received += f", and {rare:,} in fewer than {counted(options.min_count, 'row')}"
    return Problem(
        f"the training rows of {name!r} have too few words for the type {Words.kind}",
        received=received,
        expected=f"2 or more words, each in {counted(options.min_count, 'row')} or more"
        " (data_options.min_count)",
        fix=f"drop the column with {setting('data_options.drop', [*options.drop, name])}, or set"
        f" data_options.types={options.types_with({name: 'category'})}",
        path="data_options.types",
    )
