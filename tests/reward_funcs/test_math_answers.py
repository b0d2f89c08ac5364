r"""What counts as the right answer to a mathematical problem: a table of (response, ground truth, verdict).

The verdicts were decided by hand; where mathematicians could differ, the policy is the one that numerals.py states.
S2-23, S2-24; the classes are those in which public graders were seen to fail.
"""

from __future__ import annotations

import pytest

from reward_funcs import compute_score

RIGHT, WRONG = 1.0, 0.0

NUMBERS = [
    ("18", "18", RIGHT),
    ("18.", "18.0", RIGHT),
    ("+18", "18", RIGHT),
    ("004", "4", RIGHT),
    ("-5", "5", WRONG),
    ("−5", "-5", RIGHT),  # U+2212
    ("- 5", "-5", RIGHT),
    ("--5", "5", WRONG),
    ("0.1", "0.10", RIGHT),
    (".4", "0.4", RIGHT),
    (".4", "4", WRONG),
    ("The answer is .5", "0.5", RIGHT),
    ("The answer is .5", "5", WRONG),
    ("It is .5 in total", "0.5", RIGHT),
    ("7,425,000", "7425000", RIGHT),
    (r"\boxed{1{,}234}", "1234", RIGHT),
    (r"\boxed{1\,234}", "1234", RIGHT),
    (r"\boxed{10,\!000}", "10000", RIGHT),
    (r"\boxed{11,\! 111,\! 111}", "11111111", RIGHT),
    (r"\boxed{14 {, }916}", "14916", RIGHT),
    ("10 000", "10000", RIGHT),
    ("1,2,3,4", "1234", WRONG),
    ("0,111", "111", WRONG),  # no thousands begin with 0
    ("1,22", "1.22", RIGHT),  # a decimal comma in the response
    ("0.1", "0,1", WRONG),  # in the truth it is a list
    ("42 42", "42", WRONG),
    (r"\boxed{2 3}", "23", WRONG),
    ("12345678901234567890", "12345678901234567891", WRONG),  # equal as floats
    ("12345678901234567890", "12345678901234567890", RIGHT),
    ("0.30000000000000004", "0.3", WRONG),
    ("inf", "1e400", WRONG),
    ("5x", "5", WRONG),
    (r"\boxed{5x}", "5", WRONG),
    ("5!", "5", WRONG),
    ("x^2", "2", WRONG),
    (r"\sqrt{5}", "5", WRONG),
    ("3i", "3", WRONG),
    (r"2\pi", "2", WRONG),
    ("5 pi", "5", WRONG),
    ("step2", "2", WRONG),
    ("12:00", "12:00", RIGHT),
    ("1:00", "12:00", WRONG),
    ("12:00", "0", WRONG),
    (r"\boxed{3:2}", "3:2", RIGHT),
    (r"\boxed{3/2}", "3:2", WRONG),
    (r"\boxed{1011_2}", "1011_2", RIGHT),
    (r"\boxed{1011_2}", "1011", WRONG),
]

EMPTY = [
    (r"\boxed{}", "", WRONG),
    ("", "", WRONG),
    ("", "5", WRONG),
    ("5", "", WRONG),
    ("   \n ", " ", WRONG),
    (r"\boxed{ }", "5", WRONG),
    (r"18 \boxed{}", "18", WRONG),
    ("<answer></answer>", "", WRONG),
]

SCIENTIFIC = [
    ("1.5e3", "1500", RIGHT),
    ("1e3", "1000", RIGHT),
    ("1E-2", "0.01", RIGHT),
    (r"1.5\times10^{3}", "1500", RIGHT),
    (r"\boxed{1.5 \times 10^3}", "1500", RIGHT),
    ("1.5×10³", "1500", RIGHT),
    (r"\boxed{2 \cdot 10^{-3}}", "0.002", RIGHT),
    ("10^{6}", "1000000", RIGHT),
    ("10^6", "6", WRONG),
    ("1e999999999", "1", WRONG),
    ("9^9^9", "9", WRONG),
    ("9^{9^{9^{9}}}", "9", WRONG),
    (r"\boxed{9^{9^9}}", "9^{9^9}", RIGHT),
    ("9**9**9", "9", WRONG),
    ("10**500**", "10500", WRONG),
    (r"9**9**9*\pi", "0", WRONG),
    (r"\boxed{(10^9)!}", "1", WRONG),
    (r"\sum_{k=1}^{10^9} 1/k", "1", WRONG),
]

FRACTIONS = [
    (r"\boxed{\dfrac{1}{2}}", r"\frac12", RIGHT),
    (r"\boxed{\tfrac{1}{2}}", "1/2", RIGHT),
    (r"\boxed{\frac{1}{2}}", "0.5", RIGHT),
    (r"\frac{64}{400}", r"\frac{63}{400}", WRONG),
    (r"\boxed{\frac{64}{400}}", r"\frac{63}{400}", WRONG),
    (r"\boxed{\frac{64}{400}}", r"\frac{4}{25}", RIGHT),
    (r"\boxed{-\frac{1}{2}}", "-0.5", RIGHT),
    (r"\boxed{\frac{-1}{2}}", r"-\frac{1}{2}", RIGHT),
    (r"\boxed{\frac{1}{-2}}", r"-\frac{1}{2}", RIGHT),
    (r"\boxed{\frac1{12}}", "1/12", RIGHT),
    (r"\boxed{\frac{1}2}", "1/2", RIGHT),
    (r"\boxed{{1 \over 2}}", "1/2", RIGHT),
    ("1 1/2", "1.5", RIGHT),
    ("1½", "1.5", RIGHT),
    ("½", "1/2", RIGHT),
    (r"\boxed{1\frac12}", r"\frac32", RIGHT),
    (r"\boxed{-1\frac12}", "-1.5", RIGHT),
    (r"\boxed{1\frac{3}{2}}", "2.5", WRONG),  # no mixed number: its fraction is above 1
    ("1/2/3", "1/6", WRONG),
    ("1/0", "0", WRONG),
    ("2／3", "2/3", RIGHT),
    ("0.0833333333333333", r"\frac1{12}", RIGHT),
    ("0.333333", "1/3", RIGHT),
    ("0.666667", "2/3", RIGHT),
    ("0.33", "1/3", WRONG),
    ("1/3", "0.333", WRONG),
    ("0.333334", "1/3", WRONG),
    ("0.124999", "1/8", WRONG),  # 1/8 has a finite decimal
    (r"\boxed{0.\overline{3}}", r"\frac13", RIGHT),
    (r"\boxed{0.1\overline{6}}", r"\frac16", RIGHT),
    (r"\boxed{0.\overline{3}}", "0.3", WRONG),
    ("3.14", r"\pi", WRONG),
]

PERCENT = [
    ("28 percent", r"28\%", RIGHT),
    (r"7.41\%", r"7.41\%", RIGHT),
    ("18％", "18%", RIGHT),
    (r"\boxed{50}", r"50\%", RIGHT),
    (r"\boxed{50\%}", "50", RIGHT),
    (r"\boxed{50\%}", "0.5", RIGHT),
    (r"\boxed{0.5\%}", "0.5", WRONG),
    (r"\boxed{0.5}", r"50\%", RIGHT),
    (r"\boxed{50\%}", r"0.5\%", WRONG),
    (r"\boxed{28 percentage}", r"28\%", RIGHT),
    ("28", "0.28", WRONG),
    ("28/100", "28", WRONG),
    ("18 dollars", "18%", WRONG),
]

UNITS = [
    ("1,000.99€", "1000.99", RIGHT),
    ("$18", "18", RIGHT),
    ("$18$", "18", RIGHT),
    (r"\$18", "18", RIGHT),
    (r"\boxed{\$18.00}", "18", RIGHT),
    ("-$5", "-5", RIGHT),
    ("18 dollars", "$18", RIGHT),
    ("18 dollars per day", "$18", RIGHT),
    ("$5/hour", "5", RIGHT),
    ("18 euros", "$18", WRONG),
    ("72 clips, altogether.", "72", RIGHT),
    (r"\boxed{18 \text{ apples}}", "18", RIGHT),
    (r"\boxed{\text{18 apples}}", "18", RIGHT),
    (r"\boxed{18\ \text{dollars}}", "18", RIGHT),
    ("5 cm", "5", RIGHT),
    ("5", "5 cm", RIGHT),
    ("5 centimeters", "5 cm", RIGHT),
    ("5 cm", "5 m", WRONG),
    ("100 cm", "1 m", WRONG),  # nothing is converted
    ("5 cm^2", "5 cm", WRONG),
    (r"5 \text{ cm}^2", "5 square centimeters", RIGHT),
    (r"5\text{ cm}", r"5 \mathrm{cm}", RIGHT),
    ("so the number is 10 which is 1,000.99m²", "1000.99", RIGHT),
    (r"\boxed{\frac{3}{4}\text{ cup}}", "3/4", RIGHT),
    (r"\boxed{9 squares}", "9", RIGHT),
    (r"\boxed{12 \pi \text{ cm}^2}", r"12\pi", RIGHT),
    ("60 km/h", "60 kilometers per hour", RIGHT),
    (r"30^\circ", "30", RIGHT),
    (r"30^{\circ}", "30 degrees", RIGHT),
    ("5 apples", "5 pineapples", WRONG),
    ("5 red apples", "5 apples", RIGHT),
    ("5 meters long", "5 m", RIGHT),
    ("18 dollars in total", "$18", RIGHT),
    ("5m", "5", WRONG),  # five times m
    ("5 m", "5", RIGHT),
    ("5 million", "5", WRONG),
    ("5 million", "5000000", RIGHT),
    ("2 dozen", "24", RIGHT),
    ("5 halves", "5", WRONG),
    ("5 and a half", "5", WRONG),
    ("5 squared", "5", WRONG),
]

CHINESE = [
    ("１８", "18", RIGHT),
    ("１８．５", "18.5", RIGHT),
    ("１，２３４元", "1234", RIGHT),
    ("答案是18", "18", RIGHT),
    ("答案是 18 元。", "18", RIGHT),
    ("答案：１８", "18", RIGHT),
    ("答案是（１８）。", "18", RIGHT),
    ("答案为：$\\boxed{18}$", "18", RIGHT),
    ("故答案为：18", "18", RIGHT),
    ("结果是 18。", "18", RIGHT),
    ("最终答案：18", "18", RIGHT),
    ("最终答案是：**42**", "42", RIGHT),
    ("综上所述，答案是 $18$ 元。", "18", RIGHT),
    ("答：一共有18个苹果。", "18", RIGHT),
    ("答：小明有 18 米长的绳子", "18米", RIGHT),
    ("答：四十二", "42", RIGHT),
    ("因此，小明一共有 18 个苹果。", "18", RIGHT),
    ("小明有5个苹果，又买了13个，一共18个。", "18", RIGHT),
    ("小明有5个苹果，又买了13个，一共18个。", "5", WRONG),
    ("解答：15 + 27 = 42", "42", RIGHT),
    ("15 + 27 = 42，所以答案是 42。", "42", RIGHT),
    ("所以一共42个", "42", RIGHT),
    ("小明有5个，爸爸又给他13个，妈妈又18个", "18", RIGHT),
    ("一共需要1又1/2小时", "1.5", WRONG),  # half Chinese, half not: not read
    ("大约18", "18", RIGHT),
    ("答案约为18", "18", RIGHT),
    ("答案是5或6", "6", WRONG),
    ("答案是5或者6", "5", WRONG),
    ("一共5个或6个", "6", WRONG),
    ("答案是 5、6", "6", WRONG),
    ("答案是三分之二", "2/3", RIGHT),
    ("三分之二", r"\frac{2}{3}", RIGHT),
    ("3分之2", "2/3", RIGHT),
    ("一又二分之一", "1.5", RIGHT),
    ("百分之二十五", "25%", RIGHT),
    ("百分之二十五", "0.25", RIGHT),
    ("负三分之一", "-1/3", RIGHT),
    ("三点一四", "3.14", RIGHT),
    ("两千零五", "2005", RIGHT),
    ("二〇二四", "2024", RIGHT),
    ("一百二十三", "123", RIGHT),
    ("答：千百", "1100", WRONG),
    ("一万二千", "12000", RIGHT),
    ("18万", "180000", RIGHT),
    ("18万", "18", WRONG),
    ("1.2亿", "120000000", RIGHT),
    ("18 元", "18", RIGHT),
    ("18 米", "18 厘米", WRONG),
    ("18平方米", "18 m^2", RIGHT),
    ("5个半", "5", WRONG),
    ("50％", "0.5", RIGHT),
    ("故选：B", "B", RIGHT),
    ("所以，答案是（B）", "B", RIGHT),
]

WHERE_THE_ANSWER_IS = [
    ("#### 18", "18", RIGHT),
    ("####18", "18", RIGHT),
    ("#### 70000.", "70000", RIGHT),
    ("#### $18", "18", RIGHT),
    ("#### 18 dollars", "18", RIGHT),
    ("#### Step 2: add\nThe answer is 18", "18", RIGHT),
    ("#### 1. Plan\nThe answer is 18", "18", RIGHT),
    (r"\boxed{1} \boxed{2}", "2", RIGHT),
    (r"\boxed{1} \boxed{2}", "1", WRONG),
    (r"\boxed{840} and again \boxed{840}", "840", RIGHT),
    (r"\boxed{\boxed{5}}", "5", RIGHT),
    (r"\boxed{5", "5", WRONG),  # cut off: it may have become 57
    (r"\fbox{18}", "18", RIGHT),
    (r"\boxed 18", "18", RIGHT),
    (r"\[ \boxed{18} \]", "18", RIGHT),
    (r"$\boxed{18}$ apples", "18", RIGHT),
    (r"The final answer is $\boxed{18}$. I hope it is correct.", "18", RIGHT),
    (r"\boxed{7}. Explanation: 3+4=7, not 12", "7", RIGHT),
    (r"First \boxed{255}. Final Answer: The final answer is $10,455$. I hope it is correct.", "10455", RIGHT),
    ("<answer>5</answer>", "5", RIGHT),
    ("<answer>5</answer><answer>6</answer>", "6", RIGHT),
    ("<answer>5</answer><answer>6</answer>", "5", WRONG),
    (r"<answer>\boxed{5}</answer>", "5", RIGHT),
    ("<answer> The answer is 5 </answer>", "5", RIGHT),
    ("<answer> 5", "5", RIGHT),  # a stop string took the closing tag
    (r"<think>\boxed{3}</think> The answer is 5", "5", RIGHT),
    (r"<think>\boxed{5}</think> The answer is 3", "5", WRONG),
    ("The answer is 18<|im_end|>", "18", RIGHT),
    ("The answer is 18.", "18", RIGHT),
    ("The answer is 18!", "18", RIGHT),
    ("The answer is: $18$", "18", RIGHT),
    ("The answer is **18**.", "18", RIGHT),
    ("**Answer:** 18", "18", RIGHT),
    ("**Answer: 18**", "18", RIGHT),
    ("**Final Answer**\n\n18", "18", RIGHT),
    ('{"answer": "18"}', "18", RIGHT),
    ("3 + 15\nA: 18", "18", RIGHT),
    ("The answer is\n18", "18", RIGHT),
    (r"The answer is \( 18 \).", "18", RIGHT),
    ("The answer to the question is 18.", "18", RIGHT),
    ("The answer is 18 because 3*6=18", "18", RIGHT),
    ("The answer is approximately 3.14", "3.14", RIGHT),
    ("The answer is therefore 18.\nLet me know if you have questions.", "18", RIGHT),
    ("The answer is 18.\n\n(Note: 3 eggs are eaten.)", "18", RIGHT),
    ("Answer: The total cost for 3 people is 18 dollars.", "18", RIGHT),
    ("Answer: 18 apples (9 per person)", "18", RIGHT),
    ("Answer:\nFirst 16 eggs.\nThen 9 left.\nShe makes $18.", "18", RIGHT),
    ("Answer: We add the numbers.\n3+5=8, then 8+10=18", "18", RIGHT),
    ("She makes 9 * 2 = $<<9*2=18>>18 every day.", "18", RIGHT),
    ("Therefore, Janet makes **$18** per day.", "18", RIGHT),
    ("It costs $5 and saves $3.", "3", RIGHT),
    ("It costs $5 and saves $3.", "5", WRONG),
    (r"Therefore, the area is $2\sqrt{3}$ square units.", r"2\sqrt{3}", RIGHT),
    ("Final: $x+3$", "x+3", RIGHT),
    ("Step 1: 5\nStep 2: 18", "18", RIGHT),
    ("It's 18.", "18", RIGHT),
    ("= 18", "18", RIGHT),
    (r"Hence, \(x = 18\).", "18", RIGHT),
    (r"So the probability is $\frac{1}{3}$.", "1/3", RIGHT),
]

NAMING_SEVERAL = [
    ("The answer is 5 or 6", "6", WRONG),
    ("The answer is 5 or 6", "5", WRONG),
    ("The answer is 5, or 6", "5", WRONG),
    (r"\boxed{5 \text{ or } 6}", "6", WRONG),
    (r"\boxed{5 \text{ or } 6}", "5,6", RIGHT),
    ("5, 6", "6", WRONG),
    ("the answer is 5, 6, 7", "7", WRONG),
    (r"\boxed{5,6,7}", "7", WRONG),
    ("The answer is $2$ or $3$", "3", WRONG),
    ("The answer is either $2$ or maybe $3$", "3", WRONG),
    (r"2021", r"\pm2021", WRONG),
    (r"\pm2021", "2021", WRONG),
]

EXPRESSIONS_ARE_NOT_ANSWERS = [
    ("15 + 27", "42", WRONG),
    ("15 + 27", "27", WRONG),
    (r"\boxed{15+27}", "42", WRONG),
    ("15 + 27 = 42", "42", RIGHT),
    (r"\boxed{15+27=42}", "42", RIGHT),
    ("So x + 3", "3", WRONG),
    ("We end up with x + 3", "3", WRONG),
    ("We end up with b - 3", "3", WRONG),
    ("We end up with 3 + x", "3", WRONG),
    ("The total - 18", "18", RIGHT),  # a dash
    ("0", "a^2+b=0", WRONG),
    ("a^2+b=0", "0", WRONG),
    ("3x+4y+14=0", "3x-y+13=0", WRONG),
    ("11a+c", "7 = 11a+c", WRONG),
    ("__import__('os').getcwd()", "0", WRONG),
]

NAMED_VALUES = [
    ("x=5", "5", RIGHT),
    ("5", "x=5", RIGHT),
    (r"\boxed{x = 5}", "x=5", RIGHT),
    (r"\boxed{y=5}", "x=5", WRONG),
    (r"\boxed{f(x)=2x+3}", "2x+3", RIGHT),
    (r"\text{Area} = 5", "5", RIGHT),
    (r"x \approx 11", "11", RIGHT),
    (r"x=1/3\approx0.33", "1/3", RIGHT),
    ("x = 5+5+1 = 11", "11", RIGHT),
    (r"\boxed{x=1,y=2}", "x=1,y=2", RIGHT),
    (r"\boxed{y=2,x=1}", "x=1,y=2", RIGHT),
    (r"\boxed{x=2,y=1}", "x=1,y=2", WRONG),
    (r"\boxed{x = 2 \text{ or } x = 3}", "2,3", RIGHT),
    (r"\boxed{x=2,3}", "2,3", RIGHT),
    (r"\boxed{x = \pm 2}", r"\{-2, 2\}", RIGHT),
]

STRUCTURES = [
    (r"\{3,1,2\}", r"\{1,2,3\}", RIGHT),
    (r"\boxed{\left\{1,2\right\}}", r"\{2,1\}", RIGHT),
    (r"\boxed{\{1,1,2\}}", r"\{1,2\}", RIGHT),
    (r"\boxed{\{1,2\}}", "1,2", RIGHT),
    (r"\boxed{1,2}", "2,1", RIGHT),
    (r"\boxed{1,1,2}", "1,2", WRONG),
    (r"\boxed{\frac12, 3}", r"\{3, 0.5\}", RIGHT),
    (r"\boxed{\{5\}}", "5", RIGHT),
    (r"\boxed{(1, 2)}", "(1,2)", RIGHT),
    (r"\boxed{(2,1)}", "(1,2)", WRONG),
    (r"\boxed{1, 2}", "(1,2)", RIGHT),
    (r"\boxed{\{1, 2\}}", "(1,2)", WRONG),
    (r"\boxed{(3, \frac{\pi}{2})}", r"\left(3,\dfrac{\pi}{2}\right)", RIGHT),
    (r"\boxed{[1,2)}", "[1,2)", RIGHT),
    (r"\boxed{[1,2)}", "(1,2)", WRONG),
    (r"\boxed{[1,2]}", "(1,2)", WRONG),
    (r"\boxed{\left(-\infty,3\right]}", r"(-\infty, 3]", RIGHT),
    (r"\boxed{(1,+\infty)}", r"(1,\infty)", RIGHT),
    (r"\boxed{(-\infty,-1)\cup(1,\infty)}", r"(1,\infty)\cup(-\infty,-1)", RIGHT),
    (r"\boxed{x\in(1,2)}", "(1,2)", RIGHT),
    (r"$x \in [-2,7]$", "[-2,7]", RIGHT),
    (r"-2 \le x < 7", "[-2,7)", RIGHT),
    (r"-2 \le x < 7", "[-2,7]", WRONG),
    (r"x \geq 5", r"[5,\infty)", RIGHT),
    (r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", RIGHT),
    (r"\boxed{\begin{pmatrix}1\\ \frac12\end{pmatrix}}", r"\begin{bmatrix} 1 \\ 0.5 \end{bmatrix}", RIGHT),
    (r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}", WRONG),
    (r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\begin{pmatrix} 2\\1 \end{pmatrix}", WRONG),
    (r"\left[\begin{array}{cc}1 & 2 \\3 & 4\end{array}\right]", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", RIGHT),
    (r"\boxed{\begin{vmatrix}1&2\\3&4\end{vmatrix}}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", WRONG),
]

THE_SAME_LATEX = [
    (r"\boxed{2\sqrt{3}}", r"2\sqrt3", RIGHT),
    (r"\boxed{2 \sqrt{3}\text{ cm}}", r"2\sqrt{3}", RIGHT),
    (r"\boxed{\frac{\sqrt{3}}{2}}", r"\sqrt{3}/2", RIGHT),
    (r"\boxed{\frac{-\sqrt{3}}{2}}", r"-\frac{\sqrt3}{2}", RIGHT),
    (r"\frac{\pi}{2}", r"\pi/2", RIGHT),
    ("π/2", r"\frac{\pi}{2}", RIGHT),
    (r"\boxed{x^{2} + 1}", "x^2+1", RIGHT),
    (r"\boxed{x^{23}}", "x^{2}3", WRONG),
    (r"\boxed{2\cdot x}", "2x", RIGHT),
    (r"\boxed{2\cdot 3}", "23", WRONG),
    (r"\boxed{\frac{x}{2}}", "x/2", RIGHT),
    ("x <= 2", r"x \leq 2", RIGHT),
    (r"5 \geq x", r"x \leq 5", RIGHT),
    (r"x > 5", r"x \ge 5", WRONG),
    (r"\boxed{\text{even}}", "even", RIGHT),
    (r"\boxed{\text{Even}}", r"\text{even}", RIGHT),
    (r"\boxed{\text{(B)}}", r"\text{B}", RIGHT),
    (r"\boxed{(B)}", "B", RIGHT),
    (r"\boxed{B}", "A", WRONG),
    (r"\boxed{a}", "A", WRONG),
    (r"\boxed{AB}", "ab", WRONG),
    (r"\boxed{1/2x}", r"\frac{1}{2x}", WRONG),
    (r"\boxed{2x/3}", r"\frac{2x}{3}", RIGHT),
    (r"\boxed{**even**}", "even", RIGHT),
    ("The correct option is B.", "B", RIGHT),
    ("The answer is Tuesday", r"\text{Tuesday}", RIGHT),
    (r"\boxed{\emptyset}", r"\varnothing", RIGHT),
    (r"\boxed{\infty}", r"\infty", RIGHT),
    (r"\boxed{1+x}", "x+1", WRONG),  # needs algebra
]

CASES = {
    "numbers": NUMBERS,
    "empty": EMPTY,
    "scientific": SCIENTIFIC,
    "fractions": FRACTIONS,
    "percent": PERCENT,
    "units": UNITS,
    "chinese": CHINESE,
    "place": WHERE_THE_ANSWER_IS,
    "several": NAMING_SEVERAL,
    "expressions": EXPRESSIONS_ARE_NOT_ANSWERS,
    "named": NAMED_VALUES,
    "structures": STRUCTURES,
    "latex": THE_SAME_LATEX,
}


@pytest.mark.parametrize(
    ("response", "truth", "verdict"),
    [pytest.param(*case, id=f"{kind}-{i}") for kind, cases in CASES.items() for i, case in enumerate(cases)],
)
def test_the_verdict_is_the_one_decided_by_hand(response, truth, verdict):
    # S2-23, S2-24
    assert compute_score("math", response, truth) == verdict


@pytest.mark.parametrize("truth", sorted({truth for cases in CASES.values() for _, truth, _ in cases if truth.strip()}))
def test_a_ground_truth_answers_itself(truth):
    assert compute_score("math", truth, truth) == RIGHT
    assert compute_score("math", rf"So it is \boxed{{{truth}}}.", truth) == RIGHT


def test_what_is_longer_than_two_thousand_characters_is_no_answer():
    assert compute_score("math", rf"\boxed{{{'x' * 1990}}}", "x" * 1990) == RIGHT
    assert compute_score("math", rf"\boxed{{{'x' * 2010}}}", "x" * 2010) == WRONG


@pytest.mark.parametrize(
    "truth",
    [
        "9 * 2 = <<9*2=18>>18\n#### 18",
        "9 * 2 = 18\nA: 18",
        r"so \boxed{18}",
        "答：一共18元",
        "The answer is 18 dollars.",
    ],
)
def test_a_whole_solution_may_be_the_ground_truth(truth):
    # S2-24: the answer that it announces counts, not the numbers on the way
    assert compute_score("gsm8k", "The answer is 18", truth) == RIGHT
    assert compute_score("gsm8k", "The answer is 9", truth) == WRONG
