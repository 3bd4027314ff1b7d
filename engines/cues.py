"""Turns of phrase that hint at a kind of task. Each entry is one feature of `engines.classify`, whatever task it turns
out to speak for: the weights are learned. Patterns are for lower-case text."""

CUES = {
    "summarise": r"summ?[ae]r|tl;? ?dr|\bgist|synopsis|\bdigest|\babstract|\brecap|overview|\boutline|\bbrief",
    "points": r"(main|key|most important|essential|central|chief|big) (point|idea|message|takeaway|finding|thing|fact)"
    r"|takeaway|highlight|bullet|\bessence|\bessentials|bottom line|upshot|\bcore\b|nutshell|in short\b",
    "shorten": r"condens|shorte[nr]|short version|abridg|compress|cut (it|this|that|them)? ?(back|down|to)|boil|trim"
    r"|reduce|too long|wordy|squeeze|distil|\bpare\b|\bfits?\b|(a|one|two) (half|third|quarter|fifth)s?\b"
    r"|down to",
    "length": r"\b(one|two|three|four|five|six|ten|twenty|thirty|forty|fifty|sixty|hundred|\d+|a few|a couple of"
    r"|single)[- ](more |short |plain )?(sentence|line|paragraph|bullet|word|point|tweet|page)|\b(max|at most"
    r"|no more than|not more than|under|within|fewer than|less than) (\w+ )?\w+ (word|line|sentence|character)"
    r"|tweet|headline|subject line|(\w+) (seconds|minutes)\b",
    "missed": r"what .{0,12}\babout\b|catch me up|up to (speed|date)|i('ve| have)? missed|no time|(have|got) time|busy"
    r"|in a hurry|what('s| is| does).{0,20}\b(in here|in this|say|saying|said)\b|happened|went on",
    "find": r"\b(find|locat|spot|look (it |this |that )?up|search|dig|pick out|pull out|extract|retriev|track down"
    r"|point me|check|scan|fish|need to know|seek|look for|looking for|let me know|remind me|after the)\w*",
    "quote": r"quot|copy|verbatim|word for word|exact|literal|precise|as (it )?(stands|written|printed|given)",
    "only": r"\b(just|only|nothing (else|more)|no (sentence|explanation|more|other)|in a word|one word|short phrase"
    r"|alone)\b",
    "mentioned": r"mention|\bstate[ds]?\b|\bstated|\blist(ed)?\b|\bsay(s)? (about|on)|does (it|this|the \w+) (say|give"
    r"|name)|according to|it must be|it should be|somewhere|anywhere|is given|are given|is there (a|an|any)"
    r"|in there|in here",
    "blank": r"blank|____|fill (in|out)|\bfields?\b|\bboxe?s?\b|\bform\b|\bentry\b|\banswer:|question:|context:",
    "who": r"\bwho(se|m)?\b",
    "when": r"\bwhen\b|what (time|day|date|year|month)|which (day|date|year|month|hour)|on what|at what|by what"
    r"|by when|how soon",
    "where": r"\bwhere\b|in (which|what)|at which|from which|to which",
    "how many": r"how (many|much|long|old|far|tall|big|large|heavy|high|often|deep|fast|wide|late|large)\b",
    "datum": r"\b(number|code|date|price|cost|fee|deposit|amount|address|phone|telephone|extension|name|title|weight"
    r"|dose|serial|reference|account|total|colour|color|size|temperature|deadline|age|percentage|figure|value"
    r"|distance|password|version|room|email|surname|postcode|platform|speed|rate|limit|length|height|capacity)\b",
    "what the": r"\bwhat('s| is| was| are| were| did| does| do)\b",
    "which": r"\bwhich\b",
    "why": r"\bwhy\b|how come|for what reason|what made|explain|\breasons?\b|because|account for|makes? sense",
    "compare": r"compar|contrast|differ|versus|\bvs\b|similar|agree|in common|\bbetter|\bbest|cheap|prefer|worse"
    r"|\bworst|stronger|option|alternativ|trade-?off|two (sides|versions|accounts|views)",
    "contradict": r"contradict|inconsisten|add(s)? up|consistent|reconcil|fit together|square with|conflict|both"
    r"|at odds|clash|compatible|match(es)? up|mismatch|doesn't fit",
    "infer": r"infer|conclu|deduc|impl(y|ies)|follows? from|between the lines|outright|guess|suggest|assum|tell from"
    r"|point(s)? to|can be (said|told|known|read)|must have|may have|might have|could have|motiv|intend|behind",
    "steps": r"step by step|steps?\b|one by one|in turn|show your (work|reasoning)|walk (me )?through|trace|reasoning"
    r"|think|go thru|go through|line of (thought|argument)|chain",
    "argue": r"argu|for and against|pros and cons|weigh|justif|defend|object|counter|critique|critici|evaluat|assess"
    r"|analy[sz]|examine|discuss|strength|weakness|persua|convinc",
    "cause": r"\bcaus|led to|leads? to|consequen|knock-on|responsib|blame|fault|went wrong|root|brought about|effect"
    r"|impact|trigger|prevent|avoid|stopped|depend",
    "if": r"\bif\b.{0,80}\b(had|were|would|hadn't|did)\b|would have|would .{0,30}\bhave\b|what if|suppose|hypothe"
    r"|had .{0,60}instead|otherwise|imagine that|turned out differently",
    "likely": r"likel|predict|expect|probab|next\b|forecast|will happen|outcome|chance|risk",
    "decide": r"\bdecid|\bjudg|verdict|entitled|valid|\bfair\b|is .{0,30}\bright\b|correct|should .{0,60}(pay|have)"
    r"|who is right|owe|allowed|may .{0,20}claim|liable|breach|apply|applies|rule|eligible|qualif|in time|settle",
    "evidence": r"evidence|support|borne out|\bclaims?\b|hold(s)? up|prove|proof|\btrue\b|false|truth|lying|credible"
    r"|reliab|trust|doubt|believe|ground",
    "order": r"timeline|chronolog|in order|sequence|rank|earliest|first to|before|after that|sort them|priorit",
    "work out": r"work (it |this )?out|calculat|figure out|combin|derive|solve|add (up|together)|in total|altogether"
    r"|how many more|left over|puzzle|net\b|between .{0,40} and",
    "flaw": r"flaw|wrong with|mistake|the catch|problem with|overlook|weak|loophole|mislead|hole|gap|fails?\b",
    "change": r"chang|develop|shift|evolv|turn(ing)? point|turned out|how .{0,60}(view|attitude|strateg|position)",
    "write": r"\b(write|writing|draft|compose|pen|wording|come up with|make up|invent|create|put together|word)\b",
    "rewrite": r"rewrit|rephras|reword|polish|sound(s)? (warmer|friendl|more|less)|translate|formal|in the style|tone"
    r"|version of|paraphras",
    "form": r"poem|poetry|stor(y|ies)|sonnet|haiku|limerick|song|lyric|essay|letter|e-?mail|speech|toast|blog|article"
    r"|novel|verse|rhyme|stanza|slogan|caption|invitation|obituary|eulogy|press release|advert|\bscript\b"
    r"|monologue|dialogue|tale\b|fable|\bcard\b|fiction|diary|memo\b|leaflet|flyer|newsletter|tagline|sketch"
    r"|ballad|ode\b|epigraph|parody|screenplay|villanelle|elegy|\brap\b|postcard|plaque|manifesto|\briddle"
    r"|chorus|lullaby|nursery|\bpun\b|sermon|anthem|announcement|statement for|brochure|programme note"
    r"|profile of|prologue|epilogue|\bpage\b.{0,12}\b(on|about)\b|few words|blurb|testimonial|resignation"
    r"|cover letter|vows?\b|\bpost\b|application|praise",
    "wording": r"\bwords? (for|it|to)\b|words? in\b|in verse|into verse|lines? (for|on|about)|something (for|to say"
    r"|to read|in the style|rhymed)|(help|get) me (started|with)|reply (to|for)|answer for me|have to (say|write"
    r"|speak|give)|(half )?a page|put .{0,40}into|my (essay|speech|novel|toast|talk)|for the (newsletter|website"
    r"|poster|programme|invitation|card|paper|radio)|style of|manner of|as if you were|you('re| are| be) (a|an"
    r"|the)\b|pretend|from the point of view|in the voice",
    "scene": r"\bscene|chapter|character|plot\b|hero\b|heroine|protagonist|narrat|villain|once upon|opening|ending"
    r"|describ|mood|\bfirst person|metaphor|atmospher|setting|suspense|twist|carry on|continue the|begin(s)?\b"
    r"|you are (a|an|the)\b|imagin|voice|paragraph",
    "greeting": r"^\W*(hi|hello|hey|good (morning|evening|afternoon|night)|greetings|yo|sup|hiya|morning|so|well|ok"
    r"|okay|haha)\b|how are you|how's it|thank|thanks|cheers|sorry|bye|nice to|lol|haha|:\)|wow|ugh|bear with me"
    r"|let's|what now",
    "opinion": r"(do|would|did|have|are|were|could) you\b|your (view|opinion|favourite|favorite|take|thoughts?)"
    r"|you think|what do you|you like|you rather|agree\?|in your|honest",
    "advice": r"should i|shall i|\badvice|recommend|suggestion|\btips?\b|any ideas|what (can|could|would|should"
    r"|do) i\b|how (can|do) i|how to|is it (ok|okay|normal|rude|worth|safe|true|too)|am i\b|worth|good for"
    r"|idea for|stop (doing|worrying)|cope",
    "life": r"friend|flatmate|neighbo|weekend|birthday|dinner|cook|cat\b|dog\b|\bkids?\b|child|mother|mum|dad|father"
    r"|sister|brother|husband|wife|boyfriend|girlfriend|holiday|travel|sleep|coffee|tea\b|film|movie|music"
    r"|football|weather|garden|party|job|boss|school|wedding|book|money|hobby|tired|bored|sad\b|happy|nervous"
    r"|lonely|worr|feel|love|hate|miss\b|dream|fun\b|joke|game|play|laugh|recipe|breakfast|lunch|gift|present",
    "told": r"^\W*(i|i'm|i've|i'd|my|we|we've|so|well|that|it's|today|yesterday|there's|you|nobody|everybody)\b",
    "asked first": r"^\W*(do|does|did|is|are|was|were|can|could|should|shall|will|would|have|has|if)\b",
    "general": r"why (is|are|do|does|did|can)|how (does|do|is|are)|what('s| is) (a|an|the (difference|best|meaning"
    r"|capital))|do (you|people|birds|cats|dogs|we|they)|is (there|it)|who invented|have you|tell me (about|a"
    r"|something)",
    "language": r"python|java|typescript|\bc\+\+|\bc#|\brust\b|golang|\bsql|bash|\bshell\b|regex|regular expression"
    r"|\bhtml|\bcss\b|php\b|ruby\b|\bperl\b|kotlin|swift\b|haskell|pandas|numpy|react|django|flask|node\b|excel"
    r"|spreadsheet|makefile|cmake|docker|\bgit\b|pytest|powershell|awk\b|sed\b|vba\b|\bjs\b|\bcpp\b|latex|cron",
    "coding": r"function|\bclass(es)?\b|method|\bcode\b|\bcoding|program|\bbug|debug|compil|exception|traceback"
    r"|segfault|stack ?trace|\bapi\b|json|csv|yaml|xml\b|\bloop|\barray|\bdict|\bstring|variable|pointer"
    r"|refactor|unit test|type hint|docstring|import|deploy|server|database|\bquery|algorithm|\bapp\b"
    r"|one[- ]liner|snippet|recursi|\bnull\b|undefined|async|thread|branch|`|error\b|commit|merge|repo|dependenc"
    r"|package|librar|linter|crash|stdin|stdout|endpoint|request|parse|iterat|sort(s|ed|ing)?\b|index",
    "terms": r"decorator|\bdiv\b|\bheap|\btree\b|\bstack|\bqueue|permutation|data ?(structure|frame|base|type)"
    r"|complexity|garbage|compiler|runtime|framework|plug-?in|module|namespace|\bfloat|integer|boolean|\bhash"
    r"|encrypt|socket|\bports?\b|https?|\burl|token|cookie|session|log ?in\b|\bcach|localhost|cors|chmod|sudo"
    r"|ssh\b|\bcpu|\bram\b|memory|mutex|postgres|sqlite|mongo|nginx|github|raspberry|arduino|android|\bios\b"
    r"|linux|ubuntu|windows|\bmac\b|vim\b|emacs|pixel|byte|\bbits?\b|hex\b|binary|webpage|web page|scrap(e|ing)"
    r"|\bbot\b|printer|network|wifi|router|keyboard|automat|version control|sort(s|ed|ing)? (by|the|it|them|in)"
    r"|syntax|argument|parameter|callback|closure|inherit|object|instance|static|\bvoid\b|\basync|await|promise"
    r"|lambda|\benum|struct\b|generic",
    "running": r"\b(run(s|ning)?|prints?|returns?|throws?|crash\w*|install\w*|execut\w*|implement\w*|convert\w*|port"
    r"|fix|optimi[sz]e|generate|load\w*|save|update|reset|restart|works?|stopped working|doesn't work|fails?"
    r"|faster|slow)\b",
    "symbols": r"[=!<>]=|\+\+|&&|\|\||\w\(|\)\s*[;{:]|[{}]|;\s*$|\w_\w|\w\.\w+\(|[$@#]\w|</?\w+|\b0x|=>|::|--\w"
    r"|\w+error\b|\.\w{2,4}\b",
    "files": r"\b(file|folder|director|rename|column|rows?|cell|formula|macro|terminal|command|output|input|click"
    r"|button|page|browser|screen|website|form|backup|download|upload|log)",
    "document": r"\b(text|passage|document|article|above|below|underneath|attached|pasted|paste|extract|excerpt"
    r"|following|notes|minutes|transcript|thread|chat|message|letter|report|clauses?|contract|statement"
    r"|paragraph|story|page|log|account|piece|here|this|these|list)\b",
    "polite": r"please|\bpls\b|\bplz\b|kindly|would you|could you|can you|grateful|glad|appreciate",
    "myself": r"\b(i|i'm|im|i've|i'd|me|my|mine|we|our|us)\b",
    "you": r"\b(you|your|u)\b",
}
