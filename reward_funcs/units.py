"""What may follow a number without changing it: a unit or a few plain words. Conversion is left out: 100 cm is not 1 m.

A word that changes the value (half, thirds, squared, or, pi) is not a unit; nor is a letter written right behind the
digits, because 5m may be five times m.
"""

from __future__ import annotations

import re

_ALIASES = {
    "mm": "millimeter millimetre 毫米",
    "cm": "centimeter centimetre 厘米 公分",
    "dm": "decimeter decimetre 分米",
    "m": "meter metre 米",
    "km": "kilometer kilometre 千米 公里",
    "inch": "inche in 英寸",
    "foot": "feet ft 英尺",
    "yard": "yd 码",
    "mile": "mi 英里",
    "mg": "milligram 毫克",
    "g": "gram 克",
    "kg": "kilogram kilo 千克 公斤",
    "ton": "tonne 吨",
    "pound": "lb 磅",
    "ounce": "oz 盎司",
    "second": "sec s 秒 秒钟",
    "minute": "min 分钟",
    "hour": "hr h 小时 个小时 钟头",
    "day": "天 日",
    "week": "周 星期 个星期",
    "month": "月 个月",
    "year": "yr 年",
    "ml": "milliliter millilitre 毫升",
    "l": "liter litre 升",
    "gallon": "gal 加仑",
    "dollar": "$ us$ usd 美元 美金",
    "cent": "¢ 美分",
    "yuan": "¥ rmb cny 元 块 块钱 圆 人民币 元钱",
    "euro": "€ eur 欧元",
    "gbp": "£ 英镑",
    "rupee": "₹ inr rs",
    "degree": "° deg 度",
    "celsius": "°c degrees-celsius 摄氏度 ℃",
    "fahrenheit": "°f degrees-fahrenheit 华氏度 ℉",
    "mile/hour": "mph",
    "km/hour": "kmh kmph kph",
    "person": "people 人 个人",
}
_KNOWN = {alias: name for name, aliases in _ALIASES.items() for alias in (name, *aliases.split())}
_CHANGES_THE_VALUE = {
    *("or", "and", "half", "halves", "third", "thirds", "fourth", "fourths", "fifth", "fifths", "sixth", "sixths"),
    *("seventh", "eighth", "ninth", "tenth", "tenths", "hundredth", "hundredths", "thousandth", "thousandths"),
    *("plus", "minus", "over", "squared", "cubed", "to", "than", "below", "above", "negative", "not", "no", "by"),
    *("divided", "root", "factorial", "choose", "base", "mod", "point", "dozen", "hundred", "thousand", "million"),
    *("billion", "trillion", "pi", "sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "lg", "exp"),
    *("theta", "alpha", "beta", "gamma", "delta", "lambda", "mu", "sigma", "omega", "phi", "infinity", "inf"),
}
_MONEY = {"dollar", "cent", "yuan", "euro", "gbp", "rupee"}
_CLASSIFIERS = "个只件本位名头匹条张支枝棵颗辆台间座朵次份粒顶把双对"  # they count and measure nothing
_CJK_CHANGES = set("或和与到至加减乘除半多约负百千万亿成折又点分之不几余")
_SPELLED = sorted((alias for alias in _KNOWN if len(alias) > 2 or not alias.isascii()), key=len, reverse=True)
_ONE_OF_THEM = f"(?:{'|'.join(map(re.escape, _SPELLED))})s?(?![A-Za-z])"
_IN_PROSE = re.compile(
    rf" ?(?:square |cubic |平方|立方)?{_ONE_OF_THEM}(?: (?:squared|cubed)(?![a-z])"
    rf"|(?: ?/ ?| per | an? | each | every ){_ONE_OF_THEM})?",
    re.IGNORECASE,
)
_WORDS = re.compile(r"[A-Za-z°]+(?:[ -][A-Za-z]+){0,7}|[一-鿿℃℉]{1,10}|[¢$€£¥°]")
_POWER = re.compile(r"\^\{?([23])\}?$|(?<=[mt])([23])$")
_AREA = re.compile(r"(?:(?:square|sq\.?)[ -]|平方)(.+)|(.+) squared")
_VOLUME = re.compile(r"(?:(?:cubic|cu\.?)[ -]|立方)(.+)|(.+) cubed")


def unit_name(text: str, *, attached: bool) -> str | None:
    """One name for the unit written in `text` ("" when there is none), or None when `text` is no unit at all.

    attached: it was written right behind the digits.
    """
    text = text.strip().strip("().,;:?。；、").strip()
    if not text:
        return ""
    if len(text) > 60:
        return None
    head, _, tail = text.partition(",")
    if tail and not _is_words(tail.strip(" .")):
        return None
    return _rate(head.strip(), attached)


def measure_at(text: str) -> str:
    """The unit of the table that a text begins with, as written there; "" for none, or only a letter or two."""
    match = _IN_PROSE.match(text)
    return match.group() if match else ""


def same_unit(one: str, other: str) -> bool:
    """Whether two names agree; a missing unit agrees with all. Units of the table must be the same one."""
    if not one or not other or one == other:
        return True
    if _base(one) == _base(other) and _base(one) in _MONEY and "" in (one.partition("/")[2], other.partition("/")[2]):
        return True  # $18 and 18 dollars per day
    if _base(one) in _KNOWN.values() and _base(other) in _KNOWN.values():
        return False
    if not one.isascii() and not other.isascii():  # no spaces between Chinese words: 苹果 and 红苹果
        return one in other or other in one
    return bool(set(one.split()) & set(other.split()))


def _base(name: str) -> str:
    return re.split(r"[\^/]", name)[0]


def _rate(text: str, attached: bool) -> str | None:
    if text.lower() in _KNOWN:
        return _single(text, attached)
    parts = re.split(r"\s*/\s*|\s+(?:per|an?|each|every)\s+", text, maxsplit=1)
    names = [_single(part, attached and len(parts) == 1) for part in parts if part]
    return None if None in names else "/".join(name for name in names if name)


def _single(text: str, attached: bool) -> str | None:
    power = ""
    for pattern, exponent in ((_AREA, "^2"), (_VOLUME, "^3")):
        if match := pattern.fullmatch(text):
            text, power = match.group(1) or match.group(2), exponent
    if not power and (match := _POWER.search(text)):
        text, power = text[: match.start()].strip(), "^" + (match.group(1) or match.group(2))
    is_lone_letter = not power and len(text) == 1 and text.isascii() and text.isalpha()
    if (known := _known(text)) and not (attached and is_lone_letter):
        return known + power
    if power or not _is_words(text) or (attached and text[0].isascii()):
        return None
    words = text.lower().replace("-", " ").split()
    if words[0].isascii() and len(words[0]) < 3 and not _known(words[0]):
        return None
    names = [_known(word) if len(word) > 2 and len(words) > 1 else None for word in words]  # meters long
    counted = " ".join(name or _singular(word) for name, word in zip(names, words, strict=True)).lstrip(_CLASSIFIERS)
    return _known(counted) or counted


def _known(text: str) -> str | None:
    lower = text.lower().replace(" ", "-") if " " in text else text.lower()
    return _KNOWN.get(lower) or _KNOWN.get(_singular(lower))


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word


def _is_words(text: str) -> bool:
    if not _WORDS.fullmatch(text):
        return False
    if not text.isascii() and _CJK_CHANGES & set(text):
        return False
    words = text.lower().replace("-", " ").split()
    return not _CHANGES_THE_VALUE & set(words) and all(len(w) > 1 or w in "a°" or not w.isascii() for w in words)
