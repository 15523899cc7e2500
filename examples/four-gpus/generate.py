"""Prints pairs that look like chat: python examples/four-gpus/generate.py 1000000 > data/million.tsv."""

import random
import sys

WHEN = "今天 明天 后天 今晚 明晚 周六 周日 下周 月底 下午 中午 早上 放学后 下班后 放假时 生日那天".split()
WHO = "我妈 我爸 我姐 我哥 我弟 我妹 同桌 同事 老板 室友 邻居 老王 小李 表哥 房东".split()
WHERE = "公园 学校 公司 家里 楼下 超市 商场 海边 山上 车站 医院 图书馆 健身房 电影院 咖啡馆 菜市场".split()
WHAT = (
    "吃火锅 吃烧烤 吃面条 包饺子 喝奶茶 喝咖啡 看电影 看球赛 打羽毛球 打篮球 跑步 爬山 游泳 散步 "
    "唱歌 学吉他 买衣服 买水果 剪头发 修电脑 写作业 开会 加班 考试 面试 搬家 遛狗 喂猫 钓鱼 拍照"
).split()
QUESTIONS = [
    "{when}{who}要去{where}{what}，你来吗",
    "{who}说{when}在{where}{what}，你觉得呢",
    "你{when}是不是和{who}在{where}{what}",
    "{who}{when}又想去{where}{what}了",
    "帮我问问{who}，{when}能不能去{where}{what}",
    "好久没和{who}去{where}{what}了，{when}怎么样",
]
ANSWERS = [
    "好啊，{where}见",
    "{when}不行，我要{other}",
    "{what}？算了吧，我宁愿{other}",
    "{who}上次也这么说，结果没来",
    "行，{when}叫上{who}",
    "{where}人太多了，换个地方{what}吧",
    "你先去，我先{other}，完事就来",
    "哈哈，{who}就喜欢{what}",
]


def main(pairs: int) -> None:
    """Print this number of pairs, the same ones on every call; a few of them are repeated."""
    rng = random.Random(1)
    for _ in range(pairs):
        words = {"when": rng.choice(WHEN), "who": rng.choice(WHO), "where": rng.choice(WHERE)}
        words |= {"what": rng.choice(WHAT), "other": rng.choice(WHAT)}
        print(rng.choice(QUESTIONS).format_map(words), rng.choice(ANSWERS).format_map(words), sep="\t")


if __name__ == "__main__":
    main(int(sys.argv[1]))
