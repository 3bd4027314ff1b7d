"""What kind of task a request is: a small linear model over its words, in a millisecond, before any engine runs.

A request is often a few words beside a long document. What kind of task it is stands in those words, so they are
looked for first; the rest of the text says little more than that there is a document. The weights are made by
`python -m probes.train_classifier`.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

TASKS = ("writing", "chat", "summary", "lookup", "reasoning", "code")

# Of a longer text only its two ends are read: that is where people ask.
HEAD_CHARS, TAIL_CHARS = 1200, 1200
HASHED = 1 << 12  # features that words and pairs of them are hashed to
_ASKED_CHARS = 600  # most of an end that counts as asked
_BLOCK_CHARS = 260  # a paragraph longer than this is something to read

# Turns of phrase, by what they suggest. Each is one feature, whatever task it turns out to speak for.
CUES = {
    "summarise": r"summ?[ae]r|tl;? ?dr|\bgist|synopsis|\bdigest|\babstract|\brecap|overview|\boutline|\bbrief",
    "points": r"(main|key|most important|essential|central|chief|big) (point|idea|message|takeaway|finding|thing|fact)"
    r"|takeaway|highlight|bullet|\bessence|\bessentials|bottom line|upshot|\bcore\b|nutshell|in short\b",
    "shorten": r"condens|shorte[nr]|short version|abridg|compress|cut (it|this|that|them)? ?(back|down|to)|boil|trim|reduce"
    r"|too long|wordy|squeeze|distil|\bpare\b|\bfits?\b|(a|one|two) (half|third|quarter|fifth)s?\b|down to",
    "length": r"\b(one|two|three|four|five|six|ten|twenty|thirty|forty|fifty|sixty|hundred|\d+|a few|a couple of|single)"
    r"[- ](more |short |plain )?(sentence|line|paragraph|bullet|word|point|tweet|page)"
    r"|\b(max|at most|no more than|not more than|under|within|fewer than|less than) (\w+ )?\w+ (word|line|sentence|character)"
    r"|tweet|headline|subject line|(\w+) (seconds|minutes)\b",
    "missed": r"what .{0,12}\babout\b|catch me up|up to (speed|date)|i('ve| have)? missed|no time|(have|got) time"
    r"|busy|in a hurry|what('s| is| does).{0,20}\b(in here|in this|say|saying|said)\b|happened|went on",
    "find": r"\b(find|locat|spot|look (it |this |that )?up|search|dig|pick out|pull out|extract|retriev|track down|point me"
    r"|check|scan|fish|need to know|seek|look for|looking for|let me know|remind me|after the)\w*",
    "quote": r"quot|copy|verbatim|word for word|exact|literal|precise|as (it )?(stands|written|printed|given)",
    "only": r"\b(just|only|nothing (else|more)|no (sentence|explanation|more|other)|in a word|one word|short phrase|alone)\b",
    "mentioned": r"mention|\bstate[ds]?\b|\bstated|\blist(ed)?\b|\bsay(s)? (about|on)|does (it|this|the \w+) (say|give|name)"
    r"|according to|it must be|it should be|somewhere|anywhere|is given|are given|is there (a|an|any)|in there|in here",
    "blank": r"blank|____|fill (in|out)|\bfields?\b|\bboxe?s?\b|\bform\b|\bentry\b|\banswer:|question:|context:",
    "who": r"\bwho(se|m)?\b",
    "when": r"\bwhen\b|what (time|day|date|year|month)|which (day|date|year|month|hour)|on what|at what|by what|by when|how soon",
    "where": r"\bwhere\b|in (which|what)|at which|from which|to which",
    "how many": r"how (many|much|long|old|far|tall|big|large|heavy|high|often|deep|fast|wide|late|large)\b",
    "datum": r"\b(number|code|date|price|cost|fee|deposit|amount|address|phone|telephone|extension|name|title|weight|dose"
    r"|serial|reference|account|total|colour|color|size|temperature|deadline|age|percentage|figure|value|distance|password"
    r"|version|room|email|surname|postcode|platform|speed|rate|limit|length|height|capacity)\b",
    "what the": r"\bwhat('s| is| was| are| were| did| does| do)\b",
    "which": r"\bwhich\b",
    "why": r"\bwhy\b|how come|for what reason|what made|explain|\breasons?\b|because|account for|makes? sense",
    "compare": r"compar|contrast|differ|versus|\bvs\b|similar|agree|in common|\bbetter|\bbest|cheap|prefer|worse|\bworst|stronger"
    r"|option|alternativ|trade-?off|two (sides|versions|accounts|views)",
    "contradict": r"contradict|inconsisten|add(s)? up|consistent|reconcil|fit together|square with|conflict|both|at odds|clash"
    r"|compatible|match(es)? up|mismatch|doesn't fit",
    "infer": r"infer|conclu|deduc|impl(y|ies)|follows? from|between the lines|outright|guess|suggest|assum|tell from"
    r"|point(s)? to|can be (said|told|known|read)|must have|may have|might have|could have|motiv|intend|behind",
    "steps": r"step by step|steps?\b|one by one|in turn|show your (work|reasoning)|walk (me )?through|trace|reasoning|think"
    r"|go thru|go through|line of (thought|argument)|chain",
    "argue": r"argu|for and against|pros and cons|weigh|justif|defend|object|counter|critique|critici|evaluat|assess|analy[sz]"
    r"|examine|discuss|strength|weakness|persua|convinc",
    "cause": r"\bcaus|led to|leads? to|consequen|knock-on|responsib|blame|fault|went wrong|root|brought about|effect|impact"
    r"|trigger|prevent|avoid|stopped|depend",
    "if": r"\bif\b.{0,80}\b(had|were|would|hadn't|did)\b|would have|would .{0,30}\bhave\b|what if|suppose|hypothe|had .{0,60}instead"
    r"|otherwise|imagine that|turned out differently",
    "likely": r"likel|predict|expect|probab|next\b|forecast|will happen|outcome|chance|risk",
    "decide": r"\bdecid|\bjudg|verdict|entitled|valid|\bfair\b|is .{0,30}\bright\b|correct|should .{0,60}(pay|have)|who is right|owe"
    r"|allowed|may .{0,20}claim|liable|breach|apply|applies|rule|eligible|qualif|in time|settle",
    "evidence": r"evidence|support|borne out|\bclaims?\b|hold(s)? up|prove|proof|\btrue\b|false|truth|lying|credible|reliab|trust"
    r"|doubt|believe|ground",
    "order": r"timeline|chronolog|in order|sequence|rank|earliest|first to|before|after that|sort them|priorit",
    "work out": r"work (it |this )?out|calculat|figure out|combin|derive|solve|add (up|together)|in total|altogether|how many more"
    r"|left over|puzzle|net\b|between .{0,40} and",
    "flaw": r"flaw|wrong with|mistake|the catch|problem with|overlook|weak|loophole|mislead|hole|gap|fails?\b",
    "change": r"chang|develop|shift|evolv|turn(ing)? point|turned out|how .{0,60}(view|attitude|strateg|position)",
    "write": r"\b(write|writing|draft|compose|pen|wording|come up with|make up|invent|create|put together|word)\b",
    "rewrite": r"rewrit|rephras|reword|polish|sound(s)? (warmer|friendl|more|less)|translate|formal|in the style|tone|version of"
    r"|paraphras",
    "form": r"poem|poetry|stor(y|ies)|sonnet|haiku|limerick|song|lyric|essay|letter|e-?mail|speech|toast|blog|article|novel"
    r"|verse|rhyme|stanza|slogan|caption|invitation|obituary|eulogy|press release|advert|\bscript\b|monologue|dialogue|tale\b"
    r"|fable|\bcard\b|fiction|diary|memo\b|leaflet|flyer|newsletter|tagline|sketch|ballad|ode\b|epigraph|parody|screenplay"
    r"|villanelle|elegy|\brap\b|postcard|plaque|manifesto|\briddle|chorus|lullaby|nursery|\bpun\b|sermon|anthem|announcement"
    r"|statement for|brochure|programme note|profile of|prologue|epilogue|\bpage\b.{0,12}\b(on|about)\b|few words|blurb|testimonial|resignation|cover letter|vows?\b|\bpost\b|application|praise",
    "wording": r"\bwords? (for|it|to)\b|words? in\b|in verse|into verse|lines? (for|on|about)|something (for|to say|to read|in the style|rhymed)"
    r"|(help|get) me (started|with)|reply (to|for)|answer for me|have to (say|write|speak|give)|(half )?a page|put .{0,40}into"
    r"|my (essay|speech|novel|toast|talk)|for the (newsletter|website|poster|programme|invitation|card|paper|radio)|style of|manner of"
    r"|as if you were|you('re| are| be) (a|an|the)\b|pretend|from the point of view|in the voice",
    "scene": r"\bscene|chapter|character|plot\b|hero\b|heroine|protagonist|narrat|villain|once upon|opening|ending|describ|mood"
    r"|\bfirst person|metaphor|atmospher|setting|suspense|twist|carry on|continue the|begin(s)?\b|you are (a|an|the)\b|imagin|voice|paragraph",
    "greeting": r"^\W*(hi|hello|hey|good (morning|evening|afternoon|night)|greetings|yo|sup|hiya|morning|so|well|ok|okay|haha)\b"
    r"|how are you|how's it|thank|thanks|cheers|sorry|bye|nice to|lol|haha|:\)|wow|ugh|bear with me|let's|what now",
    "opinion": r"(do|would|did|have|are|were|could) you\b|your (view|opinion|favourite|favorite|take|thoughts?)|you think|what do you"
    r"|you like|you rather|agree\?|in your|honest",
    "advice": r"should i|shall i|\badvice|recommend|suggestion|\btips?\b|any ideas|what (can|could|would|should|do) i\b|how (can|do) i"
    r"|how to|is it (ok|okay|normal|rude|worth|safe|true|too)|am i\b|worth|good for|idea for|stop (doing|worrying)|cope",
    "life": r"friend|flatmate|neighbo|weekend|birthday|dinner|cook|cat\b|dog\b|\bkids?\b|child|mother|mum|dad|father|sister|brother"
    r"|husband|wife|boyfriend|girlfriend|holiday|travel|sleep|coffee|tea\b|film|movie|music|football|weather|garden|party|job"
    r"|boss|school|wedding|book|money|hobby|tired|bored|sad\b|happy|nervous|lonely|worr|feel|love|hate|miss\b|dream|fun\b|joke"
    r"|game|play|laugh|recipe|breakfast|lunch|gift|present",
    "told": r"^\W*(i|i'm|i've|i'd|my|we|we've|so|well|that|it's|today|yesterday|there's|you|nobody|everybody)\b",
    "asked first": r"^\W*(do|does|did|is|are|was|were|can|could|should|shall|will|would|have|has|if)\b",
    "general": r"why (is|are|do|does|did|can)|how (does|do|is|are)|what('s| is) (a|an|the (difference|best|meaning|capital))"
    r"|do (you|people|birds|cats|dogs|we|they)|is (there|it)|who invented|have you|tell me (about|a|something)",
    "language": r"python|java|typescript|\bc\+\+|\bc#|\brust\b|golang|\bsql|bash|\bshell\b|regex|regular expression|\bhtml|\bcss\b"
    r"|php\b|ruby\b|\bperl\b|kotlin|swift\b|haskell|pandas|numpy|react|django|flask|node\b|excel|spreadsheet|makefile|cmake"
    r"|docker|\bgit\b|pytest|powershell|awk\b|sed\b|vba\b|\bjs\b|\bcpp\b|latex|cron",
    "coding": r"function|\bclass(es)?\b|method|\bcode\b|\bcoding|program|\bbug|debug|compil|exception|traceback|segfault|stack ?trace"
    r"|\bapi\b|json|csv|yaml|xml\b|\bloop|\barray|\bdict|\bstring|variable|pointer|refactor|unit test|type hint|docstring|import"
    r"|deploy|server|database|\bquery|algorithm|\bapp\b|one[- ]liner|snippet|recursi|\bnull\b|undefined|async|thread|branch"
    r"|`|error\b|commit|merge|repo|dependenc|package|librar|linter|crash|stdin|stdout|endpoint|request|parse|iterat|sort(s|ed|ing)?\b|index",
    "terms": r"decorator|\bdiv\b|\bheap|\btree\b|\bstack|\bqueue|permutation|data ?(structure|frame|base|type)|complexity|garbage"
    r"|compiler|runtime|framework|plug-?in|module|namespace|\bfloat|integer|boolean|\bhash|encrypt|socket|\bports?\b|https?|\burl|token"
    r"|cookie|session|log ?in\b|\bcach|localhost|cors|chmod|sudo|ssh\b|\bcpu|\bram\b|memory|mutex|postgres|sqlite|mongo|nginx|github"
    r"|raspberry|arduino|android|\bios\b|linux|ubuntu|windows|\bmac\b|vim\b|emacs|pixel|byte|\bbits?\b|hex\b|binary|webpage|web page"
    r"|scrap(e|ing)|\bbot\b|printer|network|wifi|router|keyboard|automat|version control|sort(s|ed|ing)? (by|the|it|them|in)|syntax"
    r"|argument|parameter|callback|closure|inherit|object|instance|static|\bvoid\b|\basync|await|promise|lambda|\benum|struct\b|generic",
    "running": r"\b(run(s|ning)?|prints?|returns?|throws?|crash\w*|install\w*|execut\w*|implement\w*|convert\w*|port|fix|optimi[sz]e"
    r"|generate|load\w*|save|update|reset|restart|works?|stopped working|doesn't work|fails?|faster|slow)\b",
    "symbols": r"[=!<>]=|\+\+|&&|\|\||\w\(|\)\s*[;{:]|[{}]|;\s*$|\w_\w|\w\.\w+\(|[$@#]\w|</?\w+|\b0x|=>|::|--\w|\w+error\b|\.\w{2,4}\b",
    "files": r"\b(file|folder|director|rename|column|rows?|cell|formula|macro|terminal|command|output|input|click|button|page|browser"
    r"|screen|website|form|backup|download|upload|log)",
    "document": r"\b(text|passage|document|article|above|below|underneath|attached|pasted|paste|extract|excerpt|following|notes"
    r"|minutes|transcript|thread|chat|message|letter|report|clauses?|contract|statement|paragraph|story|page|log|account|piece"
    r"|here|this|these|list)\b",
    "polite": r"please|\bpls\b|\bplz\b|kindly|would you|could you|can you|grateful|glad|appreciate",
    "myself": r"\b(i|i'm|im|i've|i'd|me|my|mine|we|our|us)\b",
    "you": r"\b(you|your|u)\b",
}
_CUES = [re.compile(pattern) for pattern in CUES.values()]
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[^\sa-z\d]|\d+")
_SENTENCE = re.compile(r"(?<=[.!?:])[\"'”’)]*\s+|\n+")
_ASKING = re.compile(r"\?|\b(please|pls|plz|me|you|your|u|i'd|i want|i need)\b")
_REQUESTING = re.compile(
    r"\b(please|pls|plz|give|write|make|tell|show|explain|help|need|want|find|let|put|say|i'd like|add|turn|use|list|name)\b"
)
_FIRST_PERSON = re.compile(r"\b(i|i'm|i've|i'd|me|my|we|our|us)\b")
_CODE = re.compile(
    r"[{}();=<>_\[\]`\\|$#]|->|::|\b(def|return|import|for|if|while|select|from|class|int|void|var|let)\b"
)
_INDENTED = re.compile(r"^(?: {2,}|\t)\S", re.MULTILINE)


@dataclass(frozen=True)
class Parts:
    """The words that ask, where they stand (0 first, 1 last), and the characters of all that there is to read."""

    asked: str
    place: float
    read_chars: int
    seen: str


def parts(text: str) -> Parts:
    """Tells a request from the document it comes with: short paragraphs at either end, or else the sentences there that
    speak to somebody."""
    length = len(text)
    if length > HEAD_CHARS + TAIL_CHARS:
        text = f"{text[:HEAD_CHARS]}\n\n{text[-TAIL_CHARS:]}"
    text = text.strip().replace("’", "'")
    blocks = [block for block in re.split(r"\n\s*\n", text) if block.strip()]
    if length <= _BLOCK_CHARS:
        return Parts(text, 0.5, 0, text)
    head = blocks[0] if len(blocks) > 1 and len(blocks[0]) <= _BLOCK_CHARS else ""
    tail = blocks[-1] if len(blocks) > 1 and len(blocks[-1]) <= _BLOCK_CHARS else ""
    if not head and not tail:
        pieces = [piece for piece in _SENTENCE.split(text) if piece.strip()]
        first, last = pieces[:2], pieces[2:][-2:]
        head = " ".join(piece for i, piece in enumerate(first) if i == 0 or _ASKING.search(piece.lower()))
        tail = " ".join(piece for i, piece in enumerate(last) if i == len(last) - 1 or _ASKING.search(piece.lower()))
        if bool(_ASKING.search(head.lower())) != bool(_ASKING.search(tail.lower())):
            head, tail = (head, "") if _ASKING.search(head.lower()) else ("", tail)
    asked = "\n".join(end for end in (head[:_ASKED_CHARS], tail[-_ASKED_CHARS:]) if end)
    place = 0.5 if bool(head) == bool(tail) else float(bool(tail))
    return Parts(asked, place, length - len(asked), text)


def features(text: str) -> np.ndarray:
    """What the model is linear in: float32 [FEATURES]."""
    found = parts(text)
    asked = found.asked.lower()
    hashed = np.zeros(HASHED, np.float32)
    words = ["#" if word.isdigit() else word for word in _WORD.findall(asked)]
    grams = {*words, *(f"{a} {b}" for a, b in zip(["^", *words], [*words, "$"], strict=True))}
    for word in words:
        grams.update(f"<{word}>"[i : i + 4] + "~" for i in range(len(word) - 1))
    for gram in grams:
        hashed[zlib.crc32(gram.encode()) % HASHED] += 1
    hashed /= max(1.0, float(np.linalg.norm(hashed)))
    cues = np.array([min(2, len(cue.findall(asked))) for cue in _CUES], np.float32)
    # "What is ..." asks for something else with a document than without one.
    beside = cues if found.read_chars else np.zeros_like(cues)
    return np.concatenate([hashed, 0.5 * cues, 0.5 * beside, 0.5 * (cues - beside), 0.5 * _structure(found)])


def _structure(found: Parts) -> np.ndarray:
    """What a request looks like before its words are read: float32 [11]."""
    asked, seen = found.asked, found.seen
    signs = len(_CODE.findall(seen)) / max(20, len(seen))
    return np.array(
        [
            min(1.0, len(asked) / 200),
            float(len(asked) < 60),
            float(found.read_chars > 0),
            min(1.0, found.read_chars / 1000),
            found.place - 0.5,
            float("?" in asked),
            float(asked.rstrip().endswith("?")),
            float("?" not in asked and not _REQUESTING.search(asked.lower())),
            min(1.0, 8 * signs),
            min(1.0, 15 * len(_FIRST_PERSON.findall(seen.lower())) / max(60, len(seen))),
            float(bool(_INDENTED.search(seen))),
        ],
        np.float32,
    )
