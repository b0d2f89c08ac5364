r"""LaTeX answers brought to one spelling: what does not change the meaning is taken away, nothing is evaluated.

`tidy` keeps spaces and works on any text (prose with a number too); `canonical` gives the string that two equal
answers share. Left out: algebra. 1+x and x+1 stay different here.
"""

from __future__ import annotations

import re

from reward_funcs.plain_text import ANSWER_LIMIT

SET_OPEN, SET_CLOSE = "❴", "❵"  # \{ and \}: a set, not a group of tokens
ROW = "␞"  # \\: the next row of a matrix
_CURRENCY = "＄"  # \$: money, not the start of mathematics (plain() left no full-width signs)

_WRAPPERS = re.compile(
    r"\\(?:text|textbf|textit|textrm|texttt|textsf|textnormal|mathrm|mathbf|mathit|mathsf|mathtt|mathbb|mathcal"
    r"|mbox|hbox|emph|operatorname|boldsymbol|bm|boxed|fbox|ensuremath|underline|displaystyle|textstyle)\*?"
    r"\s{0,9}\{([^{}]*)\}"
)
_COMMAND = re.compile(r"\\([A-Za-z]+)\*?")
_RENAMED = {
    **dict.fromkeys(["dfrac", "tfrac", "cfrac", "frac"], r"\frac"),
    **dict.fromkeys(["left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "middle"], ""),
    **dict.fromkeys(["displaystyle", "textstyle", "limits", "nolimits", "rm", "bf", "it", "boxed", "fbox"], " "),
    **dict.fromkeys(["text", "textbf", "textit", "mathrm", "mathbf", "mathbb", "mbox", "operatorname"], " "),
    **dict.fromkeys(["quad", "qquad", "thinspace", "enspace", "space", "hspace", "nobreakspace"], " "),
    **dict.fromkeys(["times", "cdot", "ast"], "*"),
    **dict.fromkeys(["le", "leq", "leqslant"], r"\le "),
    **dict.fromkeys(["ge", "geq", "geqslant"], r"\ge "),
    **dict.fromkeys(["ne", "neq"], r"\ne "),
    **dict.fromkeys(["emptyset", "varnothing"], r"\emptyset "),
    **dict.fromkeys(["degree", "degrees", "textdegree", "circ"], "°"),
    **dict.fromkeys(["langle"], "("),
    **dict.fromkeys(["rangle"], ")"),
    **dict.fromkeys(["lbrace"], SET_OPEN),
    **dict.fromkeys(["rbrace"], SET_CLOSE),
    **dict.fromkeys(["textdollar", "dollar"], "$"),
    **dict.fromkeys(["euro", "texteuro"], "€"),
    **dict.fromkeys(["pounds", "textsterling"], "£"),
    **dict.fromkeys(["yen", "textyen"], "¥"),
    **dict.fromkeys(["cents", "textcent"], "¢"),
    **dict.fromkeys(["percent"], "%"),
    **dict.fromkeys(["div"], "/"),
    **dict.fromkeys(["lor", "vee"], " or "),
    **dict.fromkeys(["lt"], "<"),
    **dict.fromkeys(["gt"], ">"),
    **dict.fromkeys(["slash"], "/"),
}
_ESCAPED = {r"\{": SET_OPEN, r"\}": SET_CLOSE, r"\$": _CURRENCY, r"\%": "%", r"\#": "#", r"\&": "&", r"\_": "_"}
_ESCAPED |= {r"\!": "", r"\,": " ", r"\;": " ", r"\:": " ", r"\ ": " ", r"\>": " "}
_ESCAPED |= {r"\(": " ", r"\)": " ", r"\[": " ", r"\]": " "}
_ESCAPE = re.compile(r"\\[{}$%#&_!,;: >()\[\]]")
_SIGNS = {
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "√": r"\sqrt ", "×": "*", "·": "*", "⋅": "*", "∙": "*",
    "÷": "/", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ", "~": " ",
    ">=": r"\ge ", "<=": r"\le ", "!=": r"\ne ", "≈": r"\approx ",
    "、": ",", "º": "°", "˚": "°", "\n": " ",
}  # fmt: skip
_SIGN = re.compile("|".join(re.escape(sign) for sign in sorted(_SIGNS, key=len, reverse=True)))
_TOKEN = "[0-9A-Za-z]"
_FRACTIONS = [
    (re.compile(rf"\\frac\s{{0,9}}({_TOKEN})\s{{0,9}}({_TOKEN})"), r"\\frac{\1}{\2}"),
    (re.compile(rf"\\frac\s{{0,9}}({_TOKEN})\s{{0,9}}\{{"), r"\\frac{\1}{"),
    (re.compile(rf"\\frac\s{{0,9}}(\{{[^{{}}]*\}})\s{{0,9}}({_TOKEN})"), r"\\frac\1{\2}"),
    (re.compile(r"\{\s{0,9}([^{}\\]{1,99})\\over\s{0,9}([^{}\\]{1,99})\}"), r"\\frac{\1}{\2}"),
]
_ROW_BREAK = re.compile(r"\\\\(?:\[[^\]]{0,9}\])?")
_COMMA_IN_A_NUMBER = re.compile(r" ?\{ ?, ?\} ?|,\s?\\!\s?")  # 14{,}916 and 14,\!916
_ROOT = re.compile(r"\\sqrt ?\(([^()]{1,60})\)")  # √(2)
_BOLD = re.compile(r"(?<!\w)\*\*([^*]{1,200})\*\*(?!\w)|(?<!\w)__([^_]{1,200})__(?!\w)")
_ENDLESS = re.compile(r"\.\.\.|…|\\[lc]?dot|[0-9.]\(")
_REPEATS = [  # 0.333..., 0.1\dot{6}, 0.\dot{1}4\dot{2} and 0.(3): decimals without an end
    re.compile(
        r"(?<=\.)(?P<head>[0-9]{0,20}?)(?:(?P<one>[0-9])(?P=one){2,40}|(?P<some>[0-9]{2,12})(?P=some){1,20})[0-9]{0,11}?"
        r"(?:\.\.\.|…|\\[lc]?dots)"
    ),
    re.compile(r"(?<=\.)(?P<head>[0-9]{0,20})\\dot ?\{?(?P<one>[0-9])\}?(?P<some>(?:[0-9]{0,20}\\dot ?\{?[0-9]\}?)?)"),
    re.compile(r"(?<=[0-9]\.)(?P<head>[0-9]{0,20})(?P<one>\()(?P<some>[0-9]{1,20})\)"),
]
_ENDS = " \t\n.,;:?。；'\"`*_"
_STARTS = _ENDS.replace(".", "")  # .5 is a number
_BRACED_TOKEN = re.compile(r"\{([0-9A-Za-z])\}")
_SPACE = re.compile(r"(?<![0-9]) | (?![0-9])")
_QUOTIENT = re.compile(r"(-?)([^/+\-=<>,()]{1,60}|\([^/()]{1,60}\))/([0-9]{1,9}|[A-Za-z]|\\[a-z]{2,5})")
_NEGATIVE_FRACTION = re.compile(r"\\frac\{-([^{}+\-]{1,60})\}|\\frac-([0-9A-Za-z])")
_GREATER = re.compile(r"([^<>=]{1,200}?)(>|\\ge(?![a-z]))([^<>=]{1,200})")
_WORD = re.compile(r"[A-Za-z ]{2,}")
_PLURAL = re.compile(r"(?<=[a-z]{4})(?<!s)s$")
_ARTICLE = re.compile(r"(?:an?|the) (?=[a-z]{3})")
_INFINITY = re.compile(r"(?<![A-Za-z\\])(?:inf|infinity)(?![A-Za-z])")
_EMPTY_SETS = {SET_OPEN + SET_CLOSE, f"{SET_OPEN} {SET_CLOSE}", "empty set", "the empty set", "空集"}
_ALL_REALS = {"R", r"\R", "all real numbers", "all reals", "real numbers", r"x \in R", r"x \in \R"}
_SUCH_THAT = re.compile(rf"{SET_OPEN} ?([A-Za-z]) ?(?::|\||\\mid(?![a-z]))")
_CLOCK = re.compile(r"([0-9]{1,2}) ?: ?([0-9]{2}) ?([AaPp])\.? ?[Mm]\.?")
_BASE = re.compile(r"_\{ ?\(([0-9]{1,2})\) ?\}")


def tidy(text: str) -> str:
    r"""`text` with wrappers, spacing and delimiters gone, `\dfrac12` as `\frac{1}{2}`, `\{` as one character.

    More than ANSWER_LIMIT characters are no answer: "".
    """
    if len(text) > ANSWER_LIMIT:
        return ""
    if text.isascii() and text.isalnum():  # nothing to tidy, and most words and numbers are so
        return text
    text = _COMMA_IN_A_NUMBER.sub(",", _BOLD.sub(r" \1\2 ", text))
    if "." in text and _ENDLESS.search(text):
        for pattern in _REPEATS:
            text = pattern.sub(_overlined, text)
    if "\\" in text:
        text = _latex(text)
    text = _ROOT.sub(r"\\sqrt{\1}", _SIGN.sub(lambda sign: _SIGNS[sign.group()], text))
    if text.count("$") % 2 == 0:  # in pairs they delimit mathematics; a single one is a currency
        text = text.replace("$", " ")
    text = text.replace(_CURRENCY, "$")
    text = re.sub(r"\^ ?\{? ?° ?\}?", "°", text).replace(" ^", "^")
    return " ".join(text.split()).rstrip(_ENDS).lstrip(_STARTS)


def _overlined(match: re.Match[str]) -> str:
    r"""A decimal without an end as LaTeX has it: its head, then \overline{the digits that come again}."""
    digits = re.sub("[^0-9]", "", (match["one"] or "") + (match["some"] or ""))
    return rf"{match['head']}\overline{{{digits}}}"


def _latex(text: str) -> str:
    if r"\begin" not in text:  # one backslash too many, as JSON escaped twice leaves it
        text = re.sub(r"\\\\(?=[A-Za-z{}$%])", r"\\", text)
    text = re.sub(r"\\q?quad(?=[A-Za-z])", r"\\quad ", text)  # \quadx: a space that was lost
    text = _ROW_BREAK.sub(f" {ROW} ", text)
    text = re.sub(r"\\(?:left|right) ?\.", " ", text)
    text = _ESCAPE.sub(lambda escape: _ESCAPED[escape.group()], text)
    for _ in range(4):  # \textbf{\text{...}}: four deep is deeper than anyone writes
        text, count = _WRAPPERS.subn(r" \1 ", text)
        if not count:
            break
    text = _COMMAND.sub(lambda command: _RENAMED.get(command.group(1), command.group()), text)
    for pattern, spelled_out in _FRACTIONS:
        text = pattern.sub(spelled_out, text)
    return text


def canonical(tidied: str) -> str:
    r"""The one string for a tidied answer: no spaces, `x^{2}` as `x^2`, `a/2` as `\frac{a}2`, words in lower case.

    A space between digits stays, or `2 3` would become 23.
    """
    if tidied.lower() in _EMPTY_SETS:
        return r"\emptyset"
    if tidied in _ALL_REALS:
        return r"(-\infty,\infty)"
    is_name = tidied.isupper() and len(tidied) < 4  # AB is a line, ab a product
    if _WORD.fullmatch(tidied) and not is_name and not _INFINITY.fullmatch(tidied):
        return _PLURAL.sub("", _ARTICLE.sub("", tidied.casefold()))
    if match := _CLOCK.fullmatch(tidied):
        return f"{match[1]}:{match[2]}{match[3].lower()}m"
    text = _SUCH_THAT.sub(rf"{SET_OPEN}\1|", tidied)
    if (match := _GREATER.fullmatch(text)) and not re.search(r"\\[lgn]e(?![a-z])", match[1] + match[3]):
        text = match[3] + ("<" if match[2] == ">" else r" \le ") + match[1]  # one way to write 5 < x and x > 5
    text = _SPACE.sub("", text)
    text = text.replace(r"+\infty", r"\infty").replace("+inf", "inf")
    text = _INFINITY.sub(r"\\infty", text)
    if match := _QUOTIENT.fullmatch(text):
        top = match[2].removeprefix("(").removesuffix(")")
        text = rf"{match[1]}\frac{{{top}}}{{{match[3]}}}"
    text = _BRACED_TOKEN.sub(r"\1", _BASE.sub(r"_{\1}", text))
    text = _NEGATIVE_FRACTION.sub(lambda m: rf"-\frac{{{m[1]}}}" if m[1] else rf"-\frac{m[2]}", text)
    text = re.sub(r"\*(?=[A-Za-z(\\])", "", text)
    return text.removeprefix("+")


def outer_brackets(text: str) -> tuple[str, str, str] | None:
    """(opening, inside, closing) when one pair of brackets holds the whole text, as in (1, 2] or ❴3❵; else None.

    An interval may mix ( and ]. Braces of LaTeX groups count as a set when they stand outermost.
    """
    opening, closing = "([{" + SET_OPEN, ")]}" + SET_CLOSE
    if len(text) < 2 or text[0] not in opening or text[-1] not in closing:
        return None
    depth = 0
    for i, c in enumerate(text):
        depth += (c in opening) - (c in closing)
        if depth == 0 and i < len(text) - 1:
            return None
    return (text[0], text[1:-1], text[-1]) if depth == 0 else None


def top_level_parts(text: str, separators: str) -> list[str]:
    """`text` cut at the separator characters that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{" + SET_OPEN:
            depth += 1
        elif c in ")]}" + SET_CLOSE:
            depth -= 1
        elif depth == 0 and c in separators:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]
