"""Patterns of the files that `making.py` makes, one a line: §s is a text, §r a word that is read,
§k one that is kept, §p a paragraph; ↵ ⇥ ␣ are a line break, a tab and a no-break space; ▏ stands
around a pattern that begins or ends with spaces."""

MARKDOWN_INLINE = r"""
**§r**
__§r__
*§r*
_§r_
***§r***
~~§r~~
==§r==
`§k`
``§k ` §k``
`§k``§k`
[§r](§k.md)
[§r §r](<§k.md> '§r')
[**§r**](§k "§r §r")
[`§k`](§k.md)
<https://§k.de/a_b>
![§r §r](§k.png)
[![§r](§k.svg)](§k.html)
https://§k.de/x_y_z?a=b&c=d
<kbd>§k</kbd>
a<br>b §r
<span class="§k">§r</span>
<!-- §k -->
$§k_1 + x^2$
{{ §k }}
{% §k %}
[^§k]
[§r][§k]
&copy; §r &amp; §r
\*§r\*
snake_§r_case
2 * 3 * 4 §r
#123 @§r
{{< §k >}}
[§r]{.§k}
§r<sup>1</sup>
§r[^1]
(**§r**)
„*§r*“
**§r:** §r
§r\↵§r
§r  ↵§r
§r↵§r
<a href='§k' title='§r'>§r</a>
<b>§r *§r*</b>
`§k`: §r
<img src="§k" alt="§r §r">
§r&nbsp;§r
{{§k}}§r
%s §r
{0} §r
<mark>§r</mark>
H<sub>2</sub>O §r
:+1: §r
<!--§k-->§r
[§r](§k 'x "§r" y')
[§r [§r] §r](§k)
*§r **§r** §r*
**§r *§r***
[§r](https://§k.de/a_(b)_c)
§r*§r*§r
"""

MARKDOWN_BLOCKS = r"""
# §s
!!! note↵    §p↵↵    ```↵    §k↵↵    §k↵    ```↵↵    - §p↵    - §p
[^§k]: §s↵↵    ```§k↵    §k↵    ```
??? tip "§r §r"↵    ```↵    §k↵    ```↵    §p
- §p↵↵    === "§r §r"↵↵        §p↵↵        ```↵        §k↵        ```↵
§r §r↵:   §p↵↵    §p↵↵        §k↵
> [!TIP]↵> §p↵>↵> - §p↵> - §p
[!div class="§k"]
> [!div class="§k"]↵> * [§r](§k)
[!VIDEO https://§k.de/x]
[!code-csharp[§k](§k.cs)]
> [!example]- §r §r↵> §p
<p align=center>↵§s↵</p>
<table>↵↵<tr>↵↵<td>↵↵§p↵↵</td>↵</tr></table>
<br>↵↵§p
<Foo bar={§k} />↵↵§p
* §p↵+ §p↵- §p
1. §p↵↵   | §r | §r |↵   |---|---|↵   | §s | §s |↵↵2. §p
[//]: # (§k §k)
[comment]: <> (§k)
§p
[§r §r][§k] §p
## §s {#§k}
### §s ###
§s↵===
§s↵---
§p↵§p
- §p↵- §p↵
* §p↵↵  §p↵* §p↵  * §p↵
1. §p↵   1. §p↵2. §p↵↵   ```§k↵   §k↵   ```↵
1) §p↵2) §p↵
- [ ] §p↵- [x] §p
> §p↵> §p
> > §p↵>↵> §p
> - §p↵>   §p
> [!WARNING]↵> §p
> **§r**↵> §p
```§k↵§k **§k**↵```
~~~↵§k↵~~~
# §r↵↵    §k = 1↵    §k
- §p↵↵      §k code↵
| §r | §s |↵|:--|--:|↵| §s | `§k` |↵| **§r** | |
§r|§r↵---|---↵§s|§s
!!! note "§s"↵    §p↵↵    §p
!!! tip↵    §p
??? danger "§r §r"↵↵    §p↵↵    - §p↵
???+ note↵    §p
=== "§r §r"↵↵    §p↵↵=== "§r"↵↵    - §p
--8<-- "§k.md"
:::note §r §r↵§p↵:::
:::tip[§r §r]↵↵§p↵↵:::
::::info↵§p↵↵:::warning↵§p↵:::↵↵::::
::: {.§k}↵§p↵:::
import §k from '@site/§k';
export const §k = () => §k;
<Tabs>↵<TabItem value="§k">↵↵§p↵↵</TabItem>↵</Tabs>
<details>↵<summary>§s</summary>↵↵§p↵↵</details>
<div align="center">↵  <img src="§k" alt="§r §r">↵  <p>§s</p>↵</div>
<!--↵§k↵↵§k↵-->
[^§k]: §s
[^§k]: §s↵    §p↵↵    §p
*[§k]: §r §r
§r §r↵: §p↵: §p
[§k]: https://§k.de "§r §r"
$$↵§k↵$$
***
___
[TOC]
[[_TOC_]]
{{% §k %}}↵§p↵{{% /§k %}}
{% raw %}↵§p↵{% endraw %}
§p↵{: .§k }
## §s {: #§k .§k }
<table>↵<tr><td>§s</td><td>§s</td></tr>↵</table>
§p↵***↵§p
\# §s
+ §p↵+ §p
10. §p↵11. §p
-   §p↵↵    §p↵↵    > §p↵↵    ```↵    §k↵    ```
# §r↵↵⇥§k
* * *
#### `§k`
##### [§r](§k) §r
<a id="§k"></a>↵↵§p
<a name="§k"></a>§s
§r **§r**↵:   §p
> ```↵> §k↵> ```↵> §p
1. §p↵↵    !!! note↵        §p↵
- §p↵  | §r | §r |↵  |---|---|↵  | §r | §r |
[§k]: §k↵[§k]: <§k.md>↵  "§r"
"""

MARKDOWN_FRONT = r"""
---↵title: §r §r↵---↵
---↵title: "§r: §r"↵tags: [§k, §k]↵description: '§r ''§r'''↵slug: /§k↵---↵
+++↵title = '§r §r'↵[§k]↵x = "§k"↵+++↵
---↵description: >-↵  §r §r↵  §r↵author: §k↵---↵
---↵title: §r↵keywords:↵  - §k↵  - §k↵hide_title: true↵...↵
"""

HTML_INLINE = r"""
<b>§r</b>
<B CLASS=§k>§r</B>
<i>§r <b>§r</b></i>
<a href="§k?a=1&b=2" title="§r §r">§r</a>
<a href='§k' onclick="§k('<b>')">§r §r</a>
<code>§k</code>
<kbd>§k</kbd>+<kbd>§k</kbd>
<br>§r
<br/>§r
<BR↵>§r
<img src=§k.png alt="§r §r">
<img src='§k' alt=''>
<span data-text="§k §k" style='x:§k'>§r</span>
<font color=red face="§k">§r</font>
<sup>1</sup> §r
<sub>2</sub> §r
&nbsp;§r
&copy; §r
&auml;h §r
&#8211; §r
§r&shy;
<wbr>§r
<!-- §k > §k -->§r
<!--[if IE]>§k<![endif]--> §r
<abbr title="§r §r">§r</abbr>
<ruby>§r<rt>§r</rt></ruby>
<del>§r</del><ins>§r</ins>
<input type=submit value="§r §r">
<input type=text value="§k" placeholder='§r §r'>
<button aria-label="§r §r">§r</button>
<label for=§k>§r</label>
<span translate=no>§k</span>
<em class='notranslate §k'>§k</em>
<q>§r</q>
<cite>§r</cite>
<time datetime=§k>§r</time>
<my-widget §k="§k">§r</my-widget>
<o:p>§r</o:p>
{{ §k }}
{%§k%}
<?php echo '§k>'; ?>
<%= §k %>
§r < §r
a & §r
§r &amp; §r
<a name=§k></a>§r
<u>§r</u>§r
<mark>§r.</mark> §r
<svg width=1><title>§k</title><text>§k</text></svg>
<math><mi>§k</mi></math>
<script>if (a<b) '§k</p>'</script>
<span↵  class="§k"↵  id=§k↵>§r</span>
<a href=§k>§r</a>, <a href=§k/>§r</a>
<strong>§r:</strong> §r
(<i>§r</i>)
<small>§r<br><br>§r</small>
<tt>§k</tt>
<samp>§k</samp>
<bdo dir=rtl>§r</bdo>
<select><option value=§k>§r<option label='§r §r' selected>§r</select>
<b></b>§r
<span>␣</span>§r
<s>§r</s>
<![if !supportLists]>§r<![endif]>
<textarea name=§k>§r §r</textarea>
<meter value=1>§r</meter>
§r&nbsp
<img alt='§r &quot;§r&quot;' src=§k>
<var>§k</var>
<nobr>§r §r</nobr>
<big>§r</big>
<a title='§r &gt; §r'>§r</a>
<x-y/>§r
<noscript>§r</noscript>
<audio src=§k>§r</audio>
<object data=§k>§k</object>
<iframe src=§k>§k</iframe>
"""

HTML_BLOCKS = r"""
<p>§p</p>
<p class=§k>§p
<P>§p↵↵
<h1>§p</h1>
<H2 id=§k><a name=§k></a>§p</H2>
<div>§p<div>§p</div>§p</div>
<ul><li>§p<li>§p</ul>
<ol>↵<li><p>§p</p></li>↵<li>§p</li>↵</ol>
<dl><dt>§p<dd>§p</dl>
<table border=1><tr><th>§p<th>§p<tr><td>§p<td>§p</table>
<table><caption>§p</caption><thead><tr><th abbr=§k>§p</th></tr></thead><tbody><td>§p</td></table>
<pre>↵§k↵  §k</pre>
<blockquote cite=§k>§p</blockquote>
<center>§p</center>
<hr>
<script type="application/ld+json">{"name": "§k"}</script>
<style>↵.§k:after {content: '§k'}↵</style>
<!-- §k↵§k -->
<form action=§k><fieldset><legend>§p</legend>§p</fieldset></form>
<details open><summary>§p</summary>§p</details>
<figure><img src=§k alt="§r §r"><figcaption>§p</figcaption></figure>
<nav><a href=#§k>§r</a> | <a href=#§k>§r</a></nav>
<video controls><source src=§k><track label="§r §r" src=§k>§p</video>
<section>↵  <header>§p</header>↵  <p>↵    §p↵  </p>↵</section>
<div translate="no">§k <b>§k</b></div>
<article>§p
<template><p>§p</p></template>
§p<p>§p
<table><tr><td><table><tr><td>§p</table>§p</table>
<map><area alt="§r §r" href=§k></map>
<address>§p<br>§p</address>
<p>§p<ul><li>§p</ul>§p
<xmp><b>§k</b></xmp>
<div contenteditable>§p</div >
<p↵>§p</p↵>
<ul>↵  <li>§p↵    <ul>↵      <li>§p</li>↵    </ul>↵  </li>↵</ul>
<div aria-label="§r §r" data-x='{"a": "§k"}'>§p</div>
<canvas>§p</canvas>
<p>§r, §r; §r: §r — §r</p>
<div><!-- ko text: §k -->§p<!-- /ko --></div>
<p><b>§r</b></p>
<p><a href=§k><b><i>§r</i></b></a></p>
<li><a href=§k>§p</a></li>
"""

# the second has §e for the encoding that it declares; §b is the body
HTML_PAGES = (
    "<html><head><title>§s</title></head><body>↵§b↵</body></html>",
    '<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 4.01//EN">↵<HTML><HEAD><META HTTP-EQUIV="Content-Type"'
    ' CONTENT="text/html; charset=§e"><TITLE>§s</TITLE></HEAD><BODY BGCOLOR=#FFF>§b</BODY></HTML>',
    '<!DOCTYPE html>↵<html lang=de>↵<head>↵<meta charset="utf-8">↵<meta name=description content='
    "\"§r §r\">↵<meta property='og:title' content='§r §r'>↵<meta name=keywords content=\"§k\">↵"
    "<title>§s</title>↵<link rel=stylesheet href=§k>↵<script src=§k></script>↵<base href=§k>↵"
    "</head>↵<body class=§k onload='§k()'>↵§b↵</body>↵</html>↵",
    "§b",
    "---↵layout: §k↵title: x↵---↵§b",
)

MESSAGES = r"""
§s
<b>§r</b> §r
§r %s §r
%1$s: §r
§r↵§r §r↵
§r {0} §r
%(§k)s §r
{§k} §r
&§r
_§r
§r…
§r:↵⇥- §r↵⇥- §r
"§r" §r
§r⇥§r
<a href="§k" title='§k'>§r</a>.
§r &amp; §r
%d §r, %d §r
§r\\§r
§r (§r…)
https://§k.de/x §r
§r %% §r
<br/>§r
§r␣§r
{n, plural, one {# §r} other {# §r}}
{§k, select, §k {§r §r} other {§r}}
%{§k} §r
{{§k}} §r
§r
§r @§r
%n §r
[§r] §r
▏  §r  ▏
§r↵
§r §r §r. §r §r! §r
"""

XLIFF_12 = r"""
<g id="1">§r</g> §s
§r<x id="2"/>§r
<bpt id="1">&lt;§k&gt;</bpt>§r<ept id="1">&lt;/§k&gt;</ept> §r
<ph id="1" ctype="x-§k">§k</ph> §r
§r <it id="1" pos="open">§k</it> §r
<mrk mtype="protected">§k</mrk> §r
<mrk mtype="term">§r</mrk> §r
<bx id="1"/>§r<ex id="1"/> §r
<g id="1"><g id="2">§r</g> <x id="3"/></g>
§s
§r &amp;amp; §r
&lt;b&gt;§r&lt;/b&gt; §r
<![CDATA[§r <b>§r</b>]]>
§r↵      §r
%s §r
{0} §r
▏  §r ▏
§r &#8211; §r
<x id="lb" ctype="lb"/>§r
"""

XLIFF_2 = r"""
<pc id="1">§r</pc> §s
<ph id="1" equiv="§k" disp="§k"/> §r
<sc id="1"/>§r<ec startRef="1"/> §r
<mrk id="m" translate="no">§k</mrk> §r
<mrk id="m" type="term">§r</mrk>
§r<cp hex="0b"/> §r
<pc id="1" dataRefStart="d1"><pc id="2">§r §r</pc></pc>
§s
§r &amp; §r
<sm id="1" type="comment"/>§r<em startRef="1"/>
"""

SRT = r"""
§s
<i>§r §r</i>
- §r §r!↵- §r?
§r,↵§r.
{\an8}§r §r
♪ §r §r ♪
<font color="#§k">§r</font> §r
§r & §r < §r
[§r] §r
§r: §r
{b}§r{/b}
§r…↵…§r
<b><i>§r</i></b>
§r\N§r
"""

VTT = r"""
§s
<v §k>§r §r
<v.§k §k>§r</v>
<c.§k>§r</c> §r
<ruby>§r<rt>§r</rt></ruby>
<lang de>§r</lang>
<00:01.000>§r <00:02.000><b>§r</b>
§r &amp; §r
§r &lt; §r
- §r↵- §r
§r &nbsp;§r
<i.§k>§r</i>
"""

XML = r"""
<item>§p</item>
<a:b xmlns:a="u" c="§k">§p</a:b>
<string name="§k">§p</string>
<string name="§k" translatable="false">§k</string>
<p>§p <emph>§r</emph> §p</p>
<p><emph>§r</emph><emph>§r</emph></p>
<x/><y  z='§k' />
<!-- §k --><?§k §k?>
<d><![CDATA[§p]]></d>
<d>§r <![CDATA[§r <b>§r</b>]]> §r</d>
<p translate="no">§k <b>§k</b></p>
<p>§r &#228; §r &amp; §r &lt; §r</p>
<list>↵  <e>§p</e>↵  <e>§p</e>↵</list>
<p>&foo; §r</p>
<t>12</t>
<t> </t>
<p>§r<br/>§r<!-- §k -->§r</p>
<string-array>↵ <item>§p</item>↵</string-array>
<p>%1$s §r <xliff:g xmlns:xliff="u" id="§k">§r</xliff:g></p>
<ß>§p</ß>
<p>§r↵   §r</p>
"""
